"""The first picture: `run.plot`, as the page on the first sampler has it."""

from pathlib import Path

import natgfn as ng

run = ng.train(ng.envs.Hypergrid(side=8), updates=1_000, seeds=3)
run.plot(Path(__file__).with_suffix(".png"))
