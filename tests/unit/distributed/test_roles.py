"""Who reads which rows, and where each rank is in the mesh."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_train.distributed.roles import Roles


@given(data=st.integers(1, 6), model=st.integers(1, 6))
def test_ranks_of_a_copy_read_the_same_part_and_all_parts_are_read(data, model):
    roles = Roles(data * model, model=model)
    assert (roles.trainers, roles.readers) == (data * model, data)
    meshes = [roles.mesh_of(rank) for rank in range(roles.size)]
    for mesh in meshes:
        assert {roles.part_of(rank) for rank in mesh.model_group} == {mesh.data_index}
        assert {meshes[rank].model_index for rank in mesh.data_group} == {mesh.model_index}
        assert mesh.rank in mesh.model_group and mesh.rank in mesh.data_group
    assert {roles.part_of(rank) for rank in range(roles.size)} == set(range(data))
    assert {(m.data_index, m.model_index) for m in meshes} == {(d, m) for d in range(data) for m in range(model)}


def test_a_chief_that_takes_no_steps_reads_the_first_part():
    roles = Roles(3, dedicated=True)
    assert [roles.part_of(rank) for rank in range(3)] == [0, 0, 1]
    assert (roles.trainers, roles.readers, roles.mesh_of(1).rank) == (2, 2, 0)
