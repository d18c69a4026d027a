"""Tiers files: what is read, which file wins, and what their mistakes are told as."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpc_train.config.resources import ResourcesSection
from hpc_train.errors import UserError
from hpc_train.jobs.schedulers.local.scheduler import Machine, machine_shortfalls
from hpc_train.jobs.schedulers.slurm.limits import parse_sinfo, shortfalls
from hpc_train.jobs.site.tiers import BUILT_IN, Tier, describe_tiers, load_tiers, resources_for

SINFO = "test*|up|2:00:00|1-infinite|2|2|1|(null)|(null)|idle\n"

BAD = """\
defaults: {partition: "a b", modules: [ok, "no good"], tier: BASIC}
tiers:
  basic: {nodes: 1}
  ONE:
    nodes: 0
    memory: 16
    rank_per_node: 2
    about: "two\\nlines"
  TWO: {time: soon, environment: {A B: 1}}
  TWO: {nodes: 1}
  THREE: 3
  CUSTOM: {about: fine, nodes: 2}
  FOUR: {time: 00:10:00, warning_secs: 600}
  FIVE: {sbatch: [--nodes=3]}
tires: {}
"""


class Files:
    """A home and a site's file to write to."""

    def __init__(self, folder: Path) -> None:
        self.home, self.site = folder / "home", folder / "site.yaml"
        self.own = self.home / ".config/hpc_train/tiers.yaml"
        self.own.parent.mkdir(parents=True)

    def load(self, **env: Any) -> dict[str, Tier]:
        """With the site's file where there is one."""
        site = {"HPC_TRAIN_TIERS": str(self.site)} if self.site.exists() else {}
        return load_tiers({**site, **{name: str(value) for name, value in env.items()}}, self.home)

    def refused(self, **env: Any) -> list[str]:
        """The lines of the error."""
        with pytest.raises(UserError) as caught:
            self.load(**env)
        return str(caught.value).splitlines()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def options(tier: Tier) -> dict[str, Any]:
    return tier.options.model_dump(exclude_none=True)


def test_tiers_that_are_built_in(files: Files) -> None:
    tiers = files.load()
    assert {"BASIC", "BASIC_GPU", "STANDARD_1", "PREMIUM_1", "CUSTOM"} <= set(tiers)
    assert options(tiers["BASIC"]) == {"nodes": 1, "ranks_per_node": 2, "cores_per_rank": 1, "time": "01:00:00"}
    assert options(tiers["CUSTOM"]) == {}
    for name, tier in tiers.items():
        assert tier.name == name and tier.about and tier.file == BUILT_IN
        assert resources_for(ResourcesSection(tier=name), tiers).tier == name
    gpus = {
        n: (r.ranks_per_node, r.gpus_per_node) for n in tiers if (r := resources_for(ResourcesSection(tier=n), tiers))
    }
    assert gpus["BASIC_GPU"] == (1, 1)
    assert all(ranks == per_node for ranks, per_node in gpus.values() if per_node), "one rank for each GPU"


def test_later_files_replace_tiers_of_the_same_name_and_add_others(files: Files) -> None:
    files.site.write_text("tiers: {BASIC: {about: ours, nodes: 3}, A: {nodes: 4}, B: {nodes: 5}}")
    files.own.write_text("tiers: {B: {ranks_per_node: 6}, MINE: }")
    tiers = files.load()
    assert (tiers["BASIC"].file, tiers["BASIC"].about, options(tiers["BASIC"])) == (files.site, "ours", {"nodes": 3})
    assert options(tiers["A"]) == {"nodes": 4}
    assert (tiers["B"].file, options(tiers["B"])) == (files.own, {"ranks_per_node": 6})
    assert options(tiers["MINE"]) == {}
    assert tiers["PREMIUM_1"].file == BUILT_IN


def test_defaults_are_for_tiers_of_the_same_and_earlier_files_that_do_not_say(files: Files) -> None:
    files.site.write_text(
        "defaults: {partition: batch, account: physics, modules: [mpi], environment: {A: 1, B: 1}}\n"
        "tiers: {S: {partition: fast, environment: {B: 2}}, T: {modules: []}}"
    )
    files.own.write_text("defaults: {account: mine, environment: {A: 3}}\ntiers: {U: {nodes: 2}}")
    tiers = files.load()
    basic = tiers["BASIC"].options
    assert (basic.partition, basic.account, basic.modules, basic.nodes) == ("batch", "mine", ("mpi",), 1)
    assert basic.environment == {"A": "3", "B": "1"}
    assert (tiers["S"].options.partition, tiers["S"].options.environment) == ("fast", {"A": "3", "B": "2"})
    assert tiers["T"].options.modules == ()
    assert options(tiers["U"]) == {"nodes": 2, "account": "mine", "environment": {"A": "3"}}
    assert tiers["CUSTOM"].options.partition == "batch"


def test_a_default_that_does_not_fit_one_tier_is_no_matter_of_the_others(files: Files) -> None:
    files.site.write_text("defaults: {warning_secs: 600}\ntiers: {SHORT: {time: 00:15:00}, LONG: {time: 02:00:00}}")
    tiers = files.load()
    assert resources_for(ResourcesSection(tier="LONG"), tiers).warns_secs == 600
    assert resources_for(ResourcesSection(tier="SHORT", time="01:00:00"), tiers).warns_secs == 600
    with pytest.raises(UserError, match=rf"tier SHORT of {files.site}: `warning_secs`: 600 is more than half of"):
        resources_for(ResourcesSection(tier="SHORT"), tiers)
    rows = {row.name: row for row in describe_tiers(tiers, lambda wants: machine_shortfalls(wants, Machine(2, 0)))}
    assert "`warning_secs`: 600" in rows["SHORT"].problems[0] and not rows["LONG"].problems


def test_where_the_users_file_lies(files: Files, tmp_path: Path) -> None:
    files.own.write_text("tiers: {AT_HOME: {}}")
    other = tmp_path / "xdg/hpc_train/tiers.yaml"
    other.parent.mkdir(parents=True)
    other.write_text("tiers: {ELSEWHERE: {}}")
    assert "AT_HOME" in files.load()
    assert "AT_HOME" in files.load(XDG_CONFIG_HOME="")
    assert "AT_HOME" in files.load(XDG_CONFIG_HOME="relative"), "as the XDG specification wants it"
    tiers = files.load(XDG_CONFIG_HOME=tmp_path / "xdg")
    assert "ELSEWHERE" in tiers and "AT_HOME" not in tiers
    assert files.load(XDG_CONFIG_HOME=tmp_path / "none").keys() == load_tiers({}, tmp_path / "nobody").keys()


def test_a_sites_file_that_is_not_there(files: Files) -> None:
    (line,) = files.refused(HPC_TRAIN_TIERS=files.site)
    assert line == (
        f"HPC_TRAIN_TIERS: {files.site}: No such file or directory; set it to the tiers file of your site, or unset it"
    )
    assert "BASIC" in files.load(HPC_TRAIN_TIERS="")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "tiers:\n", "defaults:\ntiers: {}\n"])
def test_files_that_say_nothing(files: Files, text: str) -> None:
    files.own.write_text(text)
    assert all(tier.file == BUILT_IN for tier in files.load().values())


def test_all_mistakes_of_all_files_are_told_at_once(files: Files) -> None:
    files.site.write_text(BAD)
    files.own.write_text("tiers: [A]")
    *lines, last = files.refused()
    word = "one word of letters"
    expected = [
        rf"1: defaults.modules.1: 'no good' is not allowed; allowed: {word}",
        rf"1: defaults.partition: 'a b' is not allowed; allowed: {word}",
        r"1: defaults.tier: unknown key; did you mean `time`\? allowed: nodes, ranks_per_node",
        r"3: tiers.basic: 'basic' is not allowed; allowed: capital letters",
        r"5: tiers.ONE.nodes: 0 is not allowed; it should be greater than 0",
        r"6: tiers.ONE.memory: 16 is not a size of memory",
        r"7: tiers.ONE.rank_per_node: unknown key; did you mean `ranks_per_node`\? allowed: .*constraint.*about",
        r"8: tiers.ONE.about: 'two\\nlines' is not allowed; allowed: text of one line",
        r"9: tiers.TWO.environment: 'A B' is not the name of a variable",
        r"9: tiers.TWO.time: 'soon' is not a time; allowed: HH:MM:SS",
        r"10: tiers.TWO: given twice; first on line 9",
        r"11: tiers.THREE: 3 is not allowed; it should be a mapping",
        r"12: tiers.CUSTOM.nodes: CUSTOM sets nothing, job files do; give the tier another name",
        r"13: tiers.FOUR: `warning_secs`: 600 is more than half",
        r"14: tiers.FIVE.sbatch: --nodes is set by hpc-train submit",
        r"15: tires: unknown key; did you mean `tiers`\? allowed: defaults, tiers",
    ]
    assert len(lines) == len(expected), "\n".join(lines)
    for pattern, line in zip(expected, lines, strict=True):
        assert re.match(f"{re.escape(str(files.site))}:{pattern}", line), line
    assert last == f"{files.own}:1: tiers: ['A'] is not allowed; it should be a mapping"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", ":1: a tiers file is a mapping with the keys defaults, tiers"),
        ("tiers: {A: [}", "not valid YAML"),
        ("defaults: 5", ":1: defaults: 5 is not allowed; it should be a mapping"),
        ("tiers: {A: {nodes: &x 1, ranks_per_node: *x}}", ":1: an alias"),
    ],
)
def test_files_that_are_no_tiers_files(files: Files, text: str, said: str) -> None:
    files.own.write_text(text)
    (line,) = files.refused()
    assert line.startswith(str(files.own)) and said in line


def test_a_tier_that_there_is_not(files: Files) -> None:
    with pytest.raises(UserError) as caught:
        resources_for(ResourcesSection(tier="STANDARD1"), files.load())
    said = "resources.tier: there is no tier 'STANDARD1'; did you mean `STANDARD_1`? allowed: BASIC, BASIC_GPU, "
    assert str(caught.value).startswith(said) and str(caught.value).endswith("CUSTOM")


def test_rows_for_people(files: Files) -> None:
    files.site.write_text("tiers: {LONG: {about: too long, time: 1-00:00:00, memory: 2G, partition: test}}")
    tiers = files.load()
    rows = {row.name: row for row in describe_tiers(tiers, lambda wants: shortfalls(wants, parse_sinfo(SINFO)))}
    assert list(rows) == list(tiers)
    basic, long, custom = rows["BASIC"], rows["LONG"], rows["CUSTOM"]
    assert (basic.nodes, basic.ranks, basic.cores, basic.memory, basic.gpus) == (1, 2, 1, None, 0)
    assert (basic.time, basic.partition, basic.file, basic.problems) == ("01:00:00", None, str(BUILT_IN), ())
    assert (long.time, long.memory, long.partition, long.about) == ("1-00:00:00", "2G", "test", "too long")
    assert [problem.partition(":")[0] for problem in long.problems] == ["time", "memory"]
    assert (custom.nodes, custom.ranks, custom.gpus, custom.problems) == (None, None, None, ())
    assert rows["BASIC_GPU"].problems


def test_rows_of_a_machine_without_slurm(files: Files) -> None:
    def limits(wants: Any) -> list[str]:
        return machine_shortfalls(wants, Machine(1, 1))

    rows = {row.name: row.problems for row in describe_tiers(files.load(), limits)}
    assert rows["BASIC"] == rows["BASIC_GPU"] == rows["STANDARD_1"] == ()
    assert "16 GPUs wanted (4 nodes of 4), but this machine has 1" in rows["PREMIUM_1"][0]
