"""Discrete-event replay of a plan: sampled responses, engines step by step, queues, barriers.

An independent judge of the cost model and the search. What it takes from elsewhere are seconds of kernels (decode
steps and prompt passes of `planner.cost.decode` and `planner.cost.prefill`, what the plan says one token costs a
trainer) and the seconds of the plan's weight sync. How these add up to an iteration is worked out here anew, by
playing it; an import contract keeps search, assembly and the closed formulas out.

    lengths -> engine (one engine) -> rollout (a pool of them) -> iteration (stages of all workers) -> replay (verdict)
"""
