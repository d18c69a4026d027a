"""Which nodes a job is submitted without: those named slow, beside the user's."""

from __future__ import annotations

import pytest

from hpc_train.jobs.schedulers.slurm.exclusion import exclusion

KNOWN = {"n1", "n2", "n3.cluster"}


@pytest.mark.parametrize(
    ("slow", "options", "wanted"),
    [
        ((), ("--exclude=n9",), None),
        (("n1", "n2"), (), "--exclude=n1,n2"),
        (("n1",), ("--exclusive", "--exclude=n9", "--exclude=a[1-3]"), "--exclude=a[1-3],n1"),
        (("n1",), ("--exclud=n2",), "--exclude=n2,n1"),
        (("n1.site", "n1", "n3"), (), "--exclude=n1,n3.cluster"),
        (("n9",), ("--exclude=n2",), None),
        (("n1",), ("--exclude=./nodes",), None),
    ],
)
def test_the_users_nodes_are_left_out_too(slow: tuple[str, ...], options: tuple[str, ...], wanted: str | None) -> None:
    assert exclusion(slow, KNOWN, options).option == wanted


def test_what_is_not_left_out_is_said() -> None:
    assert exclusion(("n8", "n1", "n9"), KNOWN, ()).notes == ("n8, n9: named slow, but not a node of this cluster",)
    (note,) = exclusion(("n1",), KNOWN, ("--exclude=/site/nodes",)).notes
    assert note.startswith("n1: named slow, but `resources.sbatch` leaves out the nodes in a file")


def test_where_the_nodes_are_not_known_slurm_is_given_all() -> None:
    found = exclusion(("n8", "n1"), None, ())
    assert (found.option, found.notes) == ("--exclude=n8,n1", ())
