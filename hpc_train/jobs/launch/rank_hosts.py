"""On which hosts the ranks of `hpc-train launch` run: all that were given, and after a crash those that answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpc_train.errors import UserError
from hpc_train.jobs.launch.hosts import Host, ranks_on
from hpc_train.telemetry.units import counted

Probe = Callable[[Sequence[Host], Callable[[], bool]], Mapping[str, str]]
"""Says of the hosts that cannot be used, by name, why: "n2 does not answer". It ends early where the second says so."""
_NAMED = 8


class RankHosts:
    """The hosts of a job that goes on without those it has lost.

    Attributes:
        hosts: Where the next run of the ranks is, in the order given.
        reason: Why it is not on all that were given, on one line; "" where it is.
    """

    def __init__(
        self, given: tuple[Host, ...], min_hosts: int, probe: Probe, fits: Callable[[int], bool] = lambda ranks: True
    ) -> None:
        self._given, self._min_hosts, self._probe, self._fits = given, min_hosts, probe, fits
        self.hosts, self.reason = given, ""

    @property
    def ranks(self) -> int:
        """How many ranks the next run has."""
        return ranks_on(self.hosts)

    def ask(self, is_over: Callable[[], bool] = lambda: False) -> str | None:
        """Asks all hosts that were given, also those lost before; None, or why too few are left to go on with.

        The last of those that answer are left out, too, where the job cannot run on the ranks of all. Once `is_over`,
        no answer is waited for.
        """
        problems = self._probe(self._given, is_over)
        left = [host for host in self._given if host.name not in problems]
        seen = _listed([problems[host.name] for host in self._given if host.name in problems])
        counts = range(len(left), self._min_hosts - 1, -1)
        count = next((count for count in counts if self._fits(ranks_on(left[:count]))), None)
        if count is None:
            few = f"{counted(len(left), 'host')} left of {len(self._given)}, and --min-hosts is {self._min_hosts}"
            if len(left) >= self._min_hosts:
                few = f"the job cannot run on the ranks of {counted(len(left), 'host')}"
            return f"{seen}, {few}" if seen else few
        self.hosts = tuple(left[:count])
        where = (
            f"{counted(self.ranks, 'rank')} on {counted(count, 'host')}: {_listed([one.name for one in self.hosts])}"
        )
        self.reason = f"{seen}, {where}" if seen else ""
        return None


def check_counts(given: Sequence[Host], ranks: int | None, min_hosts: int | None) -> int:
    """How many hosts must be left at least: `min_hosts`, or all. Pure.

    Raises:
        UserError: `ranks` or `min_hosts` do not fit the hosts.
    """
    total = ranks_on(given)
    if ranks is not None and ranks != total:
        raise UserError(
            f"-n {ranks} does not fit --hosts, which has {counted(total, 'rank')} on {counted(len(given), 'host')}; "
            "leave -n out, or change the ranks of the hosts, as in n1:2,n2:2"
        )
    if min_hosts is not None and not 1 <= min_hosts <= len(given):
        raise UserError(
            f"--min-hosts: {min_hosts} is not allowed; the ranks have {counted(len(given), 'host')}; "
            f"allowed: 1 to {len(given)}"
        )
    return len(given) if min_hosts is None else min_hosts


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
