"""What a bundle's texts lose, and what they keep."""

from __future__ import annotations

import json
import shlex

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
        '"max_tokens": 512, "tokens": [512, 1], "token_accuracy": 0.88',
        "tokenizer: bert-base-uncased, basic tutorials, KeyError: 'image', key: train",
    ],
)
def test_what_helps_stays(text: str) -> None:
    redaction = Redaction([])
    assert redaction.text(text) == text
    assert redaction.count == 0


@given(st.text(min_size=6, max_size=30), st.text(max_size=50), st.text(max_size=50))
def test_a_value_of_the_job_is_nowhere(value: str, before: str, after: str) -> None:
    assert "*" in value or value not in Redaction([value, "on"]).text(f"{before}{value}{after}")


def test_short_values_stay() -> None:
    assert Redaction(["0", "true"]).text("0 of 10 true") == "0 of 10 true"


@pytest.mark.parametrize(
    "value", ["pässwort99", 'with "quotes" in it', "two\nlines of it", "back\\slash99", "it's quoted"]
)
def test_values_are_found_as_others_quote_them(value: str) -> None:
    for written in (json.dumps({"a": f"x {value} y"}), repr(["-x", value]), shlex.quote(value), f"rank 0: {value}"):
        found = Redaction([value]).text(written)
        assert "***" in found and not any(line in found for line in value.splitlines())


def test_json_stays_json() -> None:
    told = {
        "message": f'password="{SECRET}" refused, {{"token": "{SECRET}"}}',
        "args": ["train.py", "--api-key", SECRET, "--ranks", "4"],
        "max_tokens": 512,
        "api_key": SECRET,
        "secrets": [SECRET],
        "nested": [{"token": SECRET, "loss": 0.5, "password": None}],
    }
    redaction = Redaction([SECRET])
    found = json.loads(redaction.content("status.json", json.dumps(told, indent=1)))
    assert SECRET not in json.dumps(found)
    assert found["args"] == ["train.py", "--api-key", "***", "--ranks", "4"]
    assert (found["max_tokens"], found["nested"][0]["loss"], found["nested"][0]["password"]) == (512, 0.5, None)
    unnamed = Redaction([]).content(
        "records.jsonl", f'{{"token": "{SECRET}"}}\n{{"step": 3}}\nno json password={SECRET}\n'
    )
    assert unnamed == '{"token": "***"}\n{"step": 3}\nno json password=***\n'


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "." * 200_000, "-" * 200_000, "key=" * 50_000, "A" * 99 + "\n", "://" * 60_000]
)
def test_long_texts_take_no_time_to_speak_of(text: str) -> None:
    assert Redaction(["hunter2hunter2"]).text(text * (2_000 if text.endswith("\n") else 1))


def test_a_block_takes_only_its_own_lines() -> None:
    text = "-----BEGIN CERTIFICATE-----\nMIIC\nabc+/=\nstep 20/20  loss 0.5\nmore of the log"
    assert Redaction([]).text(text) == "***\nstep 20/20  loss 0.5\nmore of the log"
