"""For the processes of tests: Keras finds no scikit-learn and no matplotlib, whose import is a third of its start.

Keras wraps the one and draws with the other where they are installed, which nothing here makes use of. Everything but
Keras finds them.
"""

import sys


class NotForKeras:
    """Refuses the two while Keras itself is being imported."""

    def find_spec(self, name, path=None, target=None):
        if name in ("sklearn", "matplotlib"):
            keras = getattr(sys.modules.get("keras"), "__spec__", None)
            if getattr(keras, "_initializing", False):
                raise ImportError(f"{name} is kept from keras, see {__file__}")
        return None


sys.meta_path.insert(0, NotForKeras())
