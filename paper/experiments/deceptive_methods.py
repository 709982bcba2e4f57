"""How the deceptive grid is trained: the paper's methods, rivals, ours, and sweeps."""

from dataclasses import replace
from typing import NamedTuple

from natgfn.optim import AbstractRule, Adam, Euclidean, FisherAdam, SampleSpace
from natgfn.sampling import AbstractProposal, OnPolicy, UniformMixture
from natgfn.solvers import KFAC
from natgfn.sources import AbstractSource, Fresh, Mixed, Perturbed, Replay, Teacher


class Method(NamedTuple):
    """How to train."""

    rule: AbstractRule
    source: AbstractSource = Replay()
    proposal: AbstractProposal = OnPolicy()


def adam(rate: float) -> Method:
    return Method(Adam(rate, log_z_rate=0.1, clip=1.0))


def sgd(rate: float) -> Method:
    return Method(Euclidean(rate, log_z_rate=0.1, clip=1.0, adaptive_log_z=True))


def natural_cg(rate: float, damping: float) -> Method:
    return Method(FisherAdam(rate=rate, damping=damping, clip=1.0))


def momentum_after(rate: float, damping: float) -> Method:
    return Method(FisherAdam(rate=rate, damping=damping, momentum_after=True))


def natural_kfac(rate: float, damping: float, clip: float | None = 1.0) -> Method:
    return Method(FisherAdam(KFAC(), rate=rate, damping=damping, clip=clip))


def sample_space(damping: float) -> Method:
    return Method(replace(SampleSpace.network(), damping=damping))


EXPLORE = UniformMixture(0.01)
OURS = "Natural (sample space)"
MIXED = " + mixed"
ON_POLICY = ", on-policy"
METHODS: dict[str, Method] = {
    "Adam": adam(1e-3),
    "Adam, eps": adam(1e-3)._replace(proposal=EXPLORE),
    "SGD": sgd(1e-3),
    "SGD, eps": sgd(1e-3)._replace(proposal=EXPLORE),
    "Natural CG": natural_cg(1e-3, 1e-3),
    "Natural K-FAC": natural_kfac(1e-3, 1e-3),
    "Adaptive Teacher": adam(1e-3)._replace(source=Teacher()),
    OURS: Method(SampleSpace.network()),
    "Adam 5e-3": adam(5e-3),
    "Adam 5e-3 + noise": adam(5e-3)._replace(source=Perturbed()),
    f"Adam 5e-3{MIXED}": adam(5e-3)._replace(source=Mixed()),
    f"{OURS}{MIXED}": Method(SampleSpace.network(), source=Mixed()),
    f"{OURS} + Teacher": Method(SampleSpace.network(), source=Teacher()),
    f"Adam{ON_POLICY}": adam(1e-3)._replace(source=Fresh()),
    f"Adam, eps{ON_POLICY}": adam(1e-3)._replace(source=Fresh(), proposal=EXPLORE),
    f"Natural K-FAC{ON_POLICY}": natural_kfac(1e-3, 1e-3, clip=None)._replace(source=Fresh()),
}
"""The seven of the paper, with its settings, and ours: alone, with new and replayed trajectories
in one batch, and with a Teacher. A rate of 5e-3 makes Adam fast; it too is given mixed batches, and
noise in the parameters of the policy that draws. Those on policy draw nothing from the buffer."""

RIVALS = (
    "Adam",
    "Adaptive Teacher",
    "Adam 5e-3",
    "Adam 5e-3 + noise",
    f"Adam 5e-3{MIXED}",
    "Adam, tuned",
)


def cost(name: str) -> float:
    """Of an update, in updates of Adam, as `natgfn bench neural` measures it or a little more."""
    own = 1.3 if name.startswith(OURS) else 1.0
    if name.endswith("Teacher"):
        return own + 0.2
    return 2 * own if name.endswith(MIXED) else own


SWEEPS: dict[str, dict[str, Method]] = {
    "Adam": {f"rate {r:g}": adam(r) for r in (1e-3, 2e-3, 3e-3, 5e-3, 1e-2)},
    "Natural CG": {
        "rate 0.001, damping 0.001": natural_cg(1e-3, 1e-3),
        "rate 0.1, damping 1": natural_cg(1e-1, 1.0),
    }
    | {
        f"rate {r:g}, damping {d:g}, momentum after the solve, not clipped": momentum_after(r, d)
        for r, d in ((1e-3, 1e-3), (3e-3, 1e-2), (1e-2, 1e-1))
    },
    "Natural K-FAC": {
        f"rate {r:g}, damping {d:g}": natural_kfac(r, d)
        for r, d in ((1e-3, 1e-3), (1e-2, 1e-1), (3e-2, 1e-1), (1e-1, 1.0))
    }
    | {"rate 0.001, damping 0.001, not clipped": natural_kfac(1e-3, 1e-3, clip=None)},
    OURS: {f"damping {d:g}": sample_space(d) for d in (2.5, 5.0, 10.0, 20.0, 40.0)},
}
"""Five trials each; the first is the paper's, where it has one."""

SWEEP_SEED = 1_000
