"""PADS: a policy that adapts the distribution over distances from which negatives are drawn, one idea per file.

Roth et al., "PADS: policy-adapted sampling for visual similarity learning", CVPR 2020. `support` and `distribution`
say how often which distance is wanted, `drawing` draws triplets by it (the miner `pads`), `classes` the classes of a
batch. `policy` is the network, `state` what it sees, `update` what it learns from, and `controller` calls them on
schedule.
"""
