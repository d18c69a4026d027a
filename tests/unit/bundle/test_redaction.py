"""What a bundle's texts lose, and what they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.bundle.redaction import Redaction

SECRET = "zq7Hk2w9"


@pytest.mark.parametrize(
    "text",
    [
        f"export DB_PASSWORD={SECRET}",
        f'"api_key": "{SECRET}"',
        f"token: '{SECRET}'",
        f"--set resources.environment.MY_TOKEN={SECRET}",
        f"Authorization: Bearer {SECRET}{SECRET}",
        f"curl https://me:{SECRET}@host/path",
        f"git clone https://{SECRET}@host/repo",
        f"hf_{SECRET}{SECRET}",
        f"ghp_{SECRET}{SECRET}",
        f"eyJhbGciOi.{SECRET}.{SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f'password = "two words {SECRET}"',
    ],
)
def test_what_looks_like_a_secret_is_gone(text: str) -> None:
    redaction = Redaction([])
    found = redaction.text(f"before\n{text}\nafter")
    assert SECRET not in found and "***" in found and found.startswith("before\n")
    assert redaction.count == 1


@pytest.mark.parametrize(
    "text",
    [
        "step 20/20  loss 0.6727  accuracy 0.8800  23,411 examples/s",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        'data.train: {"features": ["tokens"], "label": "y"}',
        "see https://www.tensorflow.org/api_docs/python/tf/function?hl=en for more",
        "/scratch/me/runs/digits_20260131_120000/checkpoints/step-00000020",
        "NCCL_DEBUG=INFO OMPI_MCA_btl=self,tcp",
        '"token": null, "password": "***"',
    ],
)
def test_what_helps_stays(text: str) -> None:
    redaction = Redaction([])
    assert redaction.text(text) == text
    assert redaction.count == 0


@given(st.text(min_size=6, max_size=30), st.text(max_size=50), st.text(max_size=50))
def test_a_value_of_the_job_is_nowhere(value: str, before: str, after: str) -> None:
    assert value in "***" or value not in Redaction([value, "on"]).text(f"{before}{value}{after}")


def test_short_values_stay() -> None:
    assert Redaction(["0", "true"]).text("0 of 10 true") == "0 of 10 true"
