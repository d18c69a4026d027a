from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.parameter_server.window_layout import (
    APPLIED,
    HEAD,
    HEADER_WORDS,
    WORD,
    Rows,
    ServerLayout,
    control_words,
    mailboxes,
    server_layout,
)
from hpc_train.distributed.partition import Partition, VariableSpec, partition
from hpc_train.distributed.tensors import ALIGNMENT, aligned, places
from tests.support import examples

F32 = np.dtype(np.float32)

variable_lists = st.lists(
    st.builds(
        lambda shape, dtype, rows, whole: VariableSpec(tuple(shape), np.dtype(dtype), rows and bool(shape), whole),
        st.lists(st.integers(0, 9) | st.integers(1, 60), max_size=3),
        st.sampled_from(["float16", "float32", "float64"]),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=9,
)
server_counts = st.integers(1, 6)


def granule(variable: VariableSpec) -> int:
    """Bytes between places where a cut may lie in a variable, with the padding behind it."""
    return aligned(min(variable.unit, variable.nbytes))


def numbered(plan: Partition) -> np.ndarray:
    """An arena in which each variable holds 0, 1, 2 … (up to 2000, which float16 can tell apart)."""
    arena = np.full(plan.nbytes, 255, np.uint8)
    for variable, offset in zip(plan.variables, plan.offsets, strict=True):
        arena[offset : offset + variable.nbytes].view(variable.dtype)[:] = np.arange(variable.size) % 2000
    return arena


@settings(max_examples=examples(300))
@given(variable_lists, server_counts)
def test_each_element_lies_in_one_piece_and_in_order(variables: list[VariableSpec], servers: int) -> None:
    plan = partition(variables, servers)
    assert len(plan.cuts) == servers + 1
    found = [[] for _ in variables]
    for server in range(servers):
        pieces = plan.pieces(server)
        assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)
        for piece in pieces:
            assert plan.cuts[server] <= piece.offset < piece.offset + piece.nbytes <= plan.cuts[server + 1]
            found[piece.variable].append(piece)
    for variable, pieces in zip(variables, found, strict=True):
        starts, stops = [piece.start for piece in pieces], [piece.stop for piece in pieces]
        assert [0, *stops] == [*starts, variable.size]
        assert all(start < stop for start, stop in zip(starts, stops, strict=True))
    assert plan.cut_variables == [number for number, pieces in enumerate(found) if len(pieces) > 1]


@settings(max_examples=examples(300))
@given(variable_lists, server_counts)
def test_variables_and_cuts_are_aligned(variables: list[VariableSpec], servers: int) -> None:
    plan = partition(variables, servers)
    assert all(place % ALIGNMENT == 0 for place in (*plan.offsets, *plan.cuts))
    assert plan.cuts[0] == 0
    assert list(plan.cuts) == sorted(plan.cuts)
    assert plan.nbytes == sum(plan.nbytes_of(server) for server in range(servers))
    assert 0 <= plan.nbytes - sum(variable.nbytes for variable in variables) < ALIGNMENT * max(1, len(variables))
    assert all(piece.offset % ALIGNMENT == 0 for server in range(servers) for piece in plan.pieces(server))


@settings(max_examples=examples(300))
@given(variable_lists, server_counts)
def test_where_a_variable_may_be_cut_and_the_shapes_of_its_pieces(variables: list[VariableSpec], servers: int) -> None:
    plan = partition(variables, servers)
    for server in range(servers):
        for piece in plan.pieces(server):
            variable, elements = variables[piece.variable], piece.stop - piece.start
            assert math.prod(piece.shape) == elements
            assert piece.dtype == variable.dtype
            if elements == variable.size:
                assert piece.shape == variable.shape
                continue
            assert not variable.whole
            if variable.rows:
                row = math.prod(variable.shape[1:])
                assert piece.shape == (elements // row, *variable.shape[1:])
                assert piece.start % row == piece.stop % row == 0
            else:
                assert piece.shape == (elements,)


@settings(max_examples=examples(300))
@given(variable_lists, server_counts)
def test_parts_are_about_the_same(variables: list[VariableSpec], servers: int) -> None:
    plan = partition(variables, servers)
    coarsest = max(map(granule, variables), default=0)
    for server in range(servers):
        assert abs(plan.nbytes_of(server) - plan.nbytes / servers) <= coarsest + ALIGNMENT


@settings(max_examples=examples(200))
@given(variable_lists, server_counts)
def test_a_piece_is_seen_in_the_arena_and_in_the_range_of_its_server(
    variables: list[VariableSpec], servers: int
) -> None:
    plan = partition(variables, servers)
    arena, rebuilt = numbered(plan), np.full(plan.nbytes, 255, np.uint8)
    for server in range(servers):
        low, high = plan.cuts[server : server + 2]
        own, written = arena[low:high].copy(), rebuilt[low:high]
        for piece in plan.pieces(server):
            whole, part = piece.view(arena), piece.view(own, low)
            assert whole.shape == part.shape == piece.shape
            assert (whole == part).all()
            assert (whole.ravel() == np.arange(piece.start, piece.stop) % 2000).all()
            piece.view(written, low)[...] = whole
    assert rebuilt.tobytes() == arena.tobytes()


@given(variable_lists)
def test_one_server_holds_all_of_it(variables: list[VariableSpec]) -> None:
    plan = partition(variables, 1)
    assert plan.cuts == (0, plan.nbytes)
    assert plan.cut_variables == []
    assert [piece.shape for piece in plan.pieces(0)] == [v.shape for v in variables if v.size]


@pytest.mark.parametrize("servers", [2, 3, 8])
def test_a_large_embedding_is_spread_over_all_servers(servers: int) -> None:
    layers = [VariableSpec((50, 64), F32), VariableSpec((64,), F32), VariableSpec((64, 10), F32)]
    plan = partition([layers[0], VariableSpec((100_000, 50), F32, rows=True), *layers[1:]], servers)
    assert plan.cut_variables == [1]
    pieces = [piece for server in range(servers) for piece in plan.pieces(server) if piece.variable == 1]
    assert len(pieces) == servers
    assert sum(piece.shape[0] for piece in pieces) == 100_000
    assert {piece.shape[1:] for piece in pieces} == {(50,)}
    sizes = [plan.nbytes_of(server) for server in range(servers)]
    assert max(sizes) - min(sizes) <= 2 * math.lcm(200, ALIGNMENT)


def test_more_servers_than_can_be_filled() -> None:
    plan = partition([VariableSpec((3,), F32), VariableSpec((100,), F32, whole=True)], 5)
    held = [[piece.variable for piece in plan.pieces(server)] for server in range(5)]
    assert sorted(itertools.chain(*held)) == [0, 1]
    assert sum(not variables for variables in held) == 3
    assert all(plan.nbytes_of(server) == 0 for server in range(5) if not held[server])
    assert partition([], 3).cuts == (0, 0, 0, 0)
    assert partition([VariableSpec((0, 4), F32, rows=True)], 2).cuts == (0, 0, 0)


def test_a_thousand_layers_take_little_time() -> None:
    variables = [VariableSpec((512, 512), F32), VariableSpec((512,), F32)] * 1000
    plan = partition(variables, 16)
    pieces = [plan.pieces(server) for server in range(16)]
    assert len(plan.cut_variables) <= 15
    assert len(list(itertools.chain(*pieces))) == 2000 + len(plan.cut_variables)


def regions(plan: Partition, layout: ServerLayout, server: int, carried: int, state: int) -> list[tuple[str, int, int]]:
    """Each region of a server's window: its name, its begin, its bytes."""
    found = [("control", 0, (APPLIED + layout.workers) * WORD)]
    found += [(f"header {w}", layout.header(w), HEADER_WORDS * WORD) for w in range(layout.workers)]
    if layout.exchanged:
        found.append(("exchanges", layout.exchange, layout.workers * WORD))
        found += [(f"exchanged {w}", layout.numbers(w), layout.exchanged * WORD) for w in range(layout.workers)]
    found += [(f"parameters {i}", layout.parameters[i], HEAD + layout.part) for i in range(2)]
    for worker in range(layout.workers):
        box = layout.mailbox(worker)
        found.append((f"gradients {worker}", box, layout.part))
        for piece, place in zip(plan.pieces(server), layout.rows, strict=True):
            assert (place is not None) == plan.variables[piece.variable].rows
            if place is not None:
                found.append((f"count {worker} {piece.variable}", box + place, HEAD))
                found.append((f"numbers {worker} {piece.variable}", box + place + HEAD, piece.shape[0] * WORD))
        if server == 0:
            found.append((f"carried {worker}", box + layout.carried, carried))
    if server > 0:
        found.append(("state", layout.state, state))
    return [region for region in found if region[2]]


@settings(max_examples=examples(200))
@given(variable_lists, server_counts, st.integers(1, 5), st.integers(0, 300), st.integers(0, 5000), st.integers(0, 3))
def test_regions_of_a_window_do_not_overlap(
    variables: list[VariableSpec], servers: int, workers: int, carried: int, state: int, exchanged: int
) -> None:
    plan = partition(variables, servers)
    for server in range(servers):
        layout = server_layout(plan, server, workers, carried, state, exchanged)
        assert layout.exchanged == (exchanged if server == 0 else 0)
        assert layout.part == plan.nbytes_of(server)
        end = 0
        for name, begin, nbytes in sorted(regions(plan, layout, server, carried, state), key=lambda region: region[1]):
            assert begin % (WORD if name.startswith("exchanged") else ALIGNMENT) == 0, name
            assert begin >= end, f"{name} overlaps what is before it"
            end = begin + nbytes
        assert end <= layout.nbytes


@settings(max_examples=examples(100))
@given(variable_lists, st.integers(1, 3), st.integers(1, 4), st.integers(0, 200))
def test_each_mailbox_keeps_what_was_put_into_it(
    variables: list[VariableSpec], servers: int, workers: int, carried: int
) -> None:
    plan = partition(variables, servers)
    for server in range(servers):
        layout = server_layout(plan, server, workers, carried, 100)
        memory = np.zeros(layout.nbytes, np.uint8)
        boxes = mailboxes(memory, layout, plan, server, carried)
        arrays = [control_words(memory, layout)]
        for box in boxes:
            assert len(box.gradients) == len(plan.pieces(server))
            arrays += [box.header, box.carried]
            for gradient, piece in zip(box.gradients, plan.pieces(server), strict=True):
                values = gradient.values if isinstance(gradient, Rows) else gradient
                assert values.shape == piece.shape
                assert values.dtype == piece.dtype
                arrays.append(values)
                if isinstance(gradient, Rows):
                    assert len(gradient.numbers) == piece.shape[0]
                    arrays += [gradient.count, gradient.numbers]
        assert boxes[0].carried.size == (carried if server == 0 else 0)
        for number, array in enumerate(arrays):
            array[...] = number % 251
        assert all((array == number % 251).all() for number, array in enumerate(arrays))


@given(st.lists(st.integers(0, 1000), max_size=10))
def test_places_follow_one_another(sizes: list[int]) -> None:
    offsets, nbytes = places(sizes)
    assert all(offset % ALIGNMENT == 0 for offset in (*offsets, nbytes))
    for offset, size, following in zip(offsets, sizes, [*offsets, nbytes][1:], strict=True):
        assert 0 <= following - offset - size < ALIGNMENT
