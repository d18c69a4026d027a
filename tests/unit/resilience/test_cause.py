"""What a failure comes down to, out of what TensorFlow 2.21 and Keras 3.15 make of it."""

from __future__ import annotations

import pytest

from hpc_train.errors import JobEndedError, UserError
from hpc_train.outcome import EXIT_NOT_FINITE
from hpc_train.resilience.cause import Cause, cause_of, refused_batch

SITE = "/env/lib/python3.11/site-packages/tensorflow/python"
IN_SCRIPT_OPS = f"""\
Traceback (most recent call last):

  File "{SITE}/ops/script_ops.py", line 152, in _call
    ret = self._func(*args)
          ^^^^^^^^^^^^^^^^^

  File "/code/model.py", line 14, in look
    assert is_fine(count), "one too many"

AssertionError: one too many"""


class OpError(Exception):
    """As TensorFlow's have them."""

    op, error_code = None, 3


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        pytest.param(
            OpError(
                "{{function_node __wrapped__IteratorGetNext_device_/job:localhost/device:CPU:0}} Error in user-defined "
                f"function passed to MapDataset:4\n{IN_SCRIPT_OPS}\n\n\n"
                "\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: "
            ),
            Cause("AssertionError: one too many", "/code/model.py, line 14, in look"),
            id="a map_fn, or a generator",
        ),
        pytest.param(
            OpError(
                "Graph execution error:\n\nDetected at node a/EagerPyFunc defined at (most recent call last):\n"
                '  File "<frozen runpy>", line 198, in _run_module\n\n  File "/code/model.py", line 6, in call\n\n'
                f"AssertionError: one too many\nof two lines\n{IN_SCRIPT_OPS}\nof two lines\n\n\n"
                "\t [[{{node a/EagerPyFunc}}]] [Op:__inference_step_616]"
            ),
            Cause("AssertionError: one too many\nof two lines", "/code/model.py, line 14, in look"),
            id="a function in a step",
        ),
        pytest.param(
            OpError(
                "Graph execution error:\n\nDetected at node a/Assert defined at (most recent call last):\n"
                f'  File "/code/model.py", line 6, in call\n\n  File "{SITE}/x.py", line 9, in y\n\n'
                "assertion failed: [below a half wanted] [2.5]\n\t [[{{node a/Assert}}]] [Op:__inference_step_691]"
            ),
            Cause("OpError: assertion failed: [below a half wanted] [2.5]", "/code/model.py, line 6, in call"),
            id="an operation of a graph",
        ),
        pytest.param(
            OpError(
                "{{function_node __wrapped____MklMatMul_device_/job:x}} Matrix size-incompatible [Op:MatMul] name: "
            ),
            Cause("OpError: Matrix size-incompatible"),
            id="an operation by itself",
        ),
        pytest.param(
            OpError(""),
            Cause("OpError"),
            id="nothing at all",
        ),
        pytest.param(
            ValueError(
                'in user code:\n\n    File "/code/model.py", line 17, in augment  *\n        helper(x)\n'
                '    File "/code/model.py", line 20, in helper  *\n        raise KeyError("no image")\n\n'
                "    KeyError: 'no image'\n"
            ),
            Cause("KeyError: 'no image'", "/code/model.py, line 20, in helper"),
            id="a tf.function",
        ),
        pytest.param(
            ValueError(
                "Exception encountered when calling Boom.call().\n\n\x1b[1meight are too many\x1b[0m\n\n"
                "Arguments received by Boom.call():\n  • x=tf.Tensor(shape=(8, 8), dtype=float32)\n  • training=True"
            ),
            Cause("ValueError: eight are too many"),
            id="a layer",
        ),
        pytest.param(JobEndedError("the loss is NaN", EXIT_NOT_FINITE), Cause("the loss is NaN"), id="the package"),
    ],
)
def test_what_was_raised_first(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) == cause


IDS = "users (ShardedEmbedding): 2 of 8 ids are outside its table, which has the rows 0 to 9: [-1 10]"


@pytest.mark.parametrize(
    "error",
    [
        OpError(
            f"Graph execution error:\n\nassertion failed: [{IDS}]\n\t [[{{{{node a/Assert}}}}]] [Op:__inference_step_1]"
        ),
        UserError(IDS),
        UserError(
            f"Exception encountered when calling M.call().\n\n\x1b[1m{IDS}\x1b[0m\n\nArguments received by M.call():"
        ),
    ],
)
def test_what_a_layer_says_of_ids_is_found(error: BaseException) -> None:
    assert refused_batch(error) == IDS
    assert refused_batch(UserError("something else")) is None


def raised_in(path: str, source: str) -> BaseException:
    try:
        exec(compile(source, path, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_users_line_is_the_innermost_that_is_in_no_library() -> None:
    error = raised_in("/code/model.py", "import json\ndef build():\n    json.loads('x')\nbuild()")
    assert cause_of(error).where == "/code/model.py, line 3, in build"
    assert (
        cause_of(raised_in(f"{SITE}/a.py", "1 / 0")).where
        == f"{__file__}, line {raised_in.__code__.co_firstlineno + 2}, in raised_in"
    )


def test_an_assertion_without_a_message_is_known_by_its_line() -> None:
    wanted, given = 3, 2
    try:
        assert given == wanted
    except AssertionError as error:
        error.args = ()  # pytest has put a message there
        assert cause_of(error).message == "AssertionError: assert given == wanted"
