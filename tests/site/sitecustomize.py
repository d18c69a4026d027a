"""For the processes of tests, to start in little more than half the time.

Keras finds no scikit-learn and no matplotlib: it wraps the one and draws with the other where they are installed, which
nothing here makes use of. Everything but Keras finds them. And garbage is collected less often than TensorFlow's many
modules would have it.
"""

import gc
import sys

gc.set_threshold(100_000, 50, 100)


class NotForKeras:
    """Refuses the two while Keras itself is being imported."""

    def find_spec(self, name, path=None, target=None):
        if name in ("sklearn", "matplotlib"):
            keras = getattr(sys.modules.get("keras"), "__spec__", None)
            if getattr(keras, "_initializing", False):
                raise ImportError(f"{name} is kept from keras, see {__file__}")
        return None


sys.meta_path.insert(0, NotForKeras())
