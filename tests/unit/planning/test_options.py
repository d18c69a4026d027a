"""The ways to divide a job, what they cost on the wire, and which is advised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.planning import MOST_RANKS
from hpc_train.planning.holdings import Choice, ModelSizes, VariableSizes
from hpc_train.planning.options import (
    DOUBLINGS,
    Memory,
    Option,
    choices,
    distinct,
    exchanges,
    first_that_fits,
    in_pieces,
    more_ranks,
    option,
    rows_that_fit,
)
from hpc_train.planning.traffic import Call, Kind

SIZES = ModelSizes((VariableSizes("v", 1000, 1000, 4, 8),), carried=80, activations=500)


def test_an_allreduce_is_a_reducescatter_and_an_allgather() -> None:
    for ranks in (1, 2, 5):
        parts: list[Kind] = ["reducescatter", "allgather"]
        assert sum(Call(kind, 1000, ranks).sent for kind in parts) == Call("allreduce", 1000, ranks).sent
    assert Call("allreduce", 1000, 4).sent == 1500
    assert Call("alltoall", 1000, 4).sent == 750
    assert Call("push", 1000, 4).sent == 1000


@given(st.integers(1, 64), st.booleans(), st.booleans())
def test_each_way_uses_all_ranks_and_is_there_once(ranks: int, cuttable: bool, divide: bool) -> None:
    found = list(choices(ranks, cuttable, divide))
    assert len(set(found)) == len(found)
    assert all(choice.size == ranks and choice.data * choice.model == choice.ranks for choice in found)
    assert found[0] == Choice(ranks)
    assert divide or all(choice.model == 1 for choice in found)
    assert cuttable or not any(choice.shard_optimizer and choice.model > 1 for choice in found)


def test_meshes_are_those_that_divide_the_ranks() -> None:
    names = [choice.name for choice in choices(4, True, True)]
    meshes = ["mesh 2 x 2", "mesh 2 x 2 + shard", "mesh 1 x 4", "mesh 1 x 4 + shard"]
    assert names == ["sync", "shard_optimizer", *meshes, "async"]
    assert [choice.name for choice in choices(1, True, True)] == ["sync"]
    assert [choice.size for choice in choices(5, True, False, idle=1)] == [5, 5, 5, 5]
    assert [choice.ranks for choice in choices(5, True, False, idle=1)] == [4, 5, 5, 4]


def test_a_sharded_mesh_is_one_of_them_where_it_holds_less() -> None:
    parts = replace(SIZES, variables=(replace(SIZES.variables[0], elements=250, averaged="data"),))
    whole = replace(parts, variables=(*parts.variables, VariableSizes("whole", 400, 400, 4, 8)))
    both = [Choice(4, 4), Choice(4, 4, True)]
    assert [one.choice for one in distinct([option(parts, choice) for choice in both])] == both[:1]
    assert [one.choice for one in distinct([option(whole, choice) for choice in both])] == both
    asked = [replace(option(parts, choice), asked=choice.shard_optimizer) for choice in both]
    assert list(distinct(asked)) == asked


def test_what_a_step_exchanges() -> None:
    assert exchanges(SIZES, Choice(1)) == ()
    assert exchanges(SIZES, Choice(4)) == (Call("allreduce", 4000, 4, "gradients"), Call("allreduce", 80, 4, "state"))
    kinds = [(call.kind, call.nbytes) for call in exchanges(SIZES, Choice(4, shard_optimizer=True), halves=True)]
    assert kinds == [("reducescatter", 2000), ("allgather", 4000), ("allreduce", 80)]
    own = exchanges(replace(SIZES, own_step=True), Choice(4, shard_optimizer=True))
    assert [call.kind for call in own] == ["allreduce", "allgather", "allreduce"], "its gradients are whole"
    divided = replace(SIZES, variables=(replace(SIZES.variables[0], elements=500, averaged="data"),), carried=0)
    assert exchanges(divided, Choice(4, 2)) == (Call("allreduce", 2000, 2, "gradients"),)
    assert exchanges(divided, Choice(2, 2)) == (), "each part of the model is there once"
    pull, push = exchanges(SIZES, Choice(6, servers=2))
    assert (pull.nbytes, push.nbytes) == (3 * 4000, 3 * 4000 + 80), "a server reaches six workers with half of it"


def options(ranks: int) -> list[Option]:
    return [option(SIZES, choice) for choice in choices(ranks, True, False)]


def test_what_the_job_asks_for_comes_first_then_what_changes_least() -> None:
    plain = options(4)
    assert first_that_fits(plain, Memory(10**9, "")) == plain[0]
    asked = [replace(one, asked=one.choice.shard_optimizer) for one in plain]
    assert first_that_fits(asked, Memory(10**9, "")) == asked[1]
    room = Memory(plain[1].most(Memory(None, "")).total, "")
    best = first_that_fits(plain, room)
    assert best is not None
    assert best.choice.name == "shard_optimizer"
    assert first_that_fits(plain, Memory(100, "")) is None
    assert plain[0].fits(Memory(None, "")) is None
    assert first_that_fits([Option(Choice(2), refused="why")], room) is None


def test_a_gpu_holds_no_room_for_copies() -> None:
    one = option(SIZES, Choice(2), process=10**6)
    needed = 4000 + 4000 + 8000 + 500
    assert one.fits(Memory(needed, "", device=True))
    assert not one.fits(Memory(needed - 1, "", device=True))
    assert not one.fits(Memory(needed, ""))


def test_more_ranks_are_looked_for_by_doubling() -> None:
    asked = []

    def of(ranks: int) -> list[Option]:
        asked.append(ranks)
        return options(ranks)

    room = Memory(options(16)[1].most(Memory(None, "")).total, "")
    found = more_ranks(2, room, options(2), of)
    assert found.fits is not None
    assert (found.fits.choice.name, found.fits.choice.ranks, asked) == ("shard_optimizer", 16, [4, 8, 16])
    none = more_ranks(2, Memory(100, ""), options(2), options)
    assert (none.fits, none.tried, none.refused) == (None, 2 << DOUBLINGS, None)
    assert none.least == options(2 << DOUBLINGS)[1].most(Memory(None, "")).total


def test_as_many_ranks_are_tried_as_may_help() -> None:
    def of(ranks: int) -> list[Option]:
        table = VariableSizes("table", 10**9, 10**9 // ranks, 4, averaged="alone")
        refused = Option(Choice(ranks, 2), refused="7 units") if ranks > 2 else option(SIZES, Choice(ranks, 2))
        return [option(ModelSizes((table,)), Choice(ranks)), refused, Option(Choice(ranks, ranks), refused="why")]

    found = more_ranks(2, Memory(10**7, ""), of(2), of)
    assert found.fits is not None and found.fits.choice.ranks == 2048 > 2 << DOUBLINGS
    none = more_ranks(4, Memory(10, ""), of(4), of)
    assert (none.fits, none.tried, none.refused) == (None, MOST_RANKS, "7 units")
    assert more_ranks(MOST_RANKS, Memory(10, ""), of(8), of).tried == MOST_RANKS


def test_a_smaller_batch_is_named_where_it_helps() -> None:
    one = option(SIZES, Choice(1))
    rest = one.most(Memory(None, "")).total - 500
    assert rows_that_fit(one, Memory(rest + 250, ""), 64) == 32
    assert rows_that_fit(one, Memory(rest - 1, ""), 64) is None
    assert rows_that_fit(one, Memory(None, ""), 64) is None


@pytest.mark.parametrize(("elements", "pieces"), [(2**31 - 1, None), (2**31, 2), (10**10, 5)])
def test_a_variable_of_too_many_elements_goes_in_pieces(elements: int, pieces: int | None) -> None:
    notes = in_pieces(ModelSizes((VariableSizes("table", elements, elements, 4),)))
    assert [f"{pieces} pieces" in note for note in notes] == ([True] if pieces else [])
    rows = VariableSizes("rows", elements, elements, 4, averaged="alone")
    assert not in_pieces(ModelSizes((rows,))), "only those that a batch needs travel"
