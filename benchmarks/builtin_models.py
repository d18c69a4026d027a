"""How good the built-in models are with their defaults, against others, on scikit-learn's data sets and a made one.

python benchmarks/builtin_models.py                 # about 10 minutes
python benchmarks/builtin_models.py --quick         # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import os
from dataclasses import asdict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from support.records import Found
from support.results import open_results
from support.usage import make_parser, run_main, tell

BENCHMARK = "builtin_models"


def main() -> int:
    args = make_parser(__doc__, BENCHMARK).parse_args()
    from tables.comparison import DATA_SETS, KINDS, Settings, make_page, measure  # and so TensorFlow

    settings = Settings(2, 300, dict.fromkeys(KINDS, 5)) if args.quick else Settings()
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        for name in DATA_SETS:
            for kind in KINDS:
                tell(f"{kind} on {name}")
                results.add(f"{name}, {kind}", measure(name, kind, settings))
        return results.conclude(make_page(Found(results.records)), args.strict)


if __name__ == "__main__":
    run_main(main)
