"""The demonstration behind `make demo`: Fashion-MNIST on a few ranks, from images to an exported model.

python examples/fashion_mnist/demo.py [--source DIR] [--strategy async]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import h5py
from prepare import DATA, prepare

from hpc_train.distributed.silence import CHATTER
from hpc_train.errors import UserError

HERE = Path(__file__).resolve().parent
JOBS = {"sync": ("job.yaml", 2), "async": ("async.yaml", 3)}
"""By strategy: the job file, and how many ranks; of the three ranks of an asynchronous job one holds the parameters."""
WANTED_ACCURACY = 0.90
LIMIT_SECS = 1800
TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:")


def run(command: list[str]) -> int:
    """Runs `command`, showing its lines without the tags of its ranks; returns its exit code."""
    # horovodrun looks for mpirun on PATH, and both may be of an environment that is not activated.
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = TAG.sub("", line)
            if not re.search(CHATTER, line):
                print(line, end="", flush=True)
        return process.wait(timeout=LIMIT_SECS)


def main() -> None:
    """Entry point; exits with 1 where training failed or the accuracy is too low."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="folder with the four IDX files of Fashion-MNIST")
    parser.add_argument("--strategy", choices=sorted(JOBS), default="sync", help="[default: sync]")
    arguments = parser.parse_args()
    start = time.time()
    try:
        description = prepare(arguments.source)
    except UserError as error:
        sys.exit(f"demo.py: error: {error}")
    job_file, ranks = HERE / JOBS[arguments.strategy][0], JOBS[arguments.strategy][1]
    job_dir = Path("runs") / time.strftime("fashion_mnist_%Y%m%d_%H%M%S")
    train = [sys.executable, "-m", "hpc_train", "train", str(job_file), "--job-dir", str(job_dir)]
    launcher = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(ranks)]
    print(f"$ horovodrun -np {ranks} python -m hpc_train train {job_file} --job-dir {job_dir}")
    code = run([*launcher, *train])
    if code != 0:
        sys.exit(f"demo.py: training ended with exit code {code}")
    status = json.loads((job_dir / "status.json").read_text())
    accuracy, step = status["evaluation"]["accuracy"], status["step"]
    best = max((job_dir / "export/best").glob("*/hpc_train.json"))
    of_best = json.loads(best.read_text())
    images = 0
    for path in DATA.glob("test-*.h5"):
        with h5py.File(path) as file:
            images += len(file["label"])
    print(f"""
data           {description}
test accuracy  {accuracy:.4f} on all {images:,} test images
speed          {status["examples_per_sec"]:,.0f} examples/s on {ranks} ranks
wall time      {time.time() - start:.0f} s
checkpoint     {job_dir / "checkpoints" / f"step-{step:08d}"}
SavedModels    {status["exports"][-1]}
               {best.parent.absolute()}  (best: {of_best["metrics"]["accuracy"]:.4f} at step {of_best["step"]})
job-dir        {job_dir}
report         {status["report"]}""")
    if accuracy < WANTED_ACCURACY:
        sys.exit(f"demo.py: the accuracy should be at least {WANTED_ACCURACY}")


if __name__ == "__main__":
    main()
