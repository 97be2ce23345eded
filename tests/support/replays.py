"""Passes of a bucket on a device, replayed and launch by launch, each from the same memory: both give the same bits."""

import numpy as np
import torch

from tspec.runtime.inputs import fill_inputs


class Passes:
    """Both ways to run a pass of a RandomModel or a RandomDraft."""

    def __init__(self, model):
        self.model = model
        self.caches = model.model.k_cache, model.model.v_cache
        self.before = [cache.clone() for cache in self.caches]

    def replayed(self, kind, bucket, inputs):
        self.restore()
        outputs = self.model.executor.run(kind, bucket, inputs)
        return {name: array.copy() for name, array in outputs.items()}, [each.clone() for each in self.caches]

    def one_by_one(self, kind, bucket, inputs, **options):
        self.restore()
        bound = self.model.executor.bind(kind, bucket)
        fill_inputs(bound.inputs.arrays, bucket, inputs)
        bound.inputs.to_device()
        for launch in bound.launches:
            launch(**options)
        bound.outputs.to_host()
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        outputs = {name: array.copy() for name, array in bound.outputs.arrays.items()}
        return outputs, [each.clone() for each in self.caches]

    def restore(self):
        """Keys and values as they were at first."""
        for cache, before in zip(self.caches, self.before, strict=True):
            cache.copy_(before)

    def hold(self, kind, bucket, cases):
        """Replays of both cases in turn, the first one twice, have the bits of launches one by one: outputs of each."""
        self.model.executor.capture([(kind, bucket)])
        expected = [self.one_by_one(kind, bucket, inputs) for inputs in cases]
        for number in (0, 1, 0):
            assert_same(self.replayed(kind, bucket, cases[number]), expected[number])
        return [outputs for outputs, _ in expected]


def assert_same(found, expected):
    for name, array in expected[0].items():
        assert np.array_equal(found[0][name], array), name
    for cache, want in zip(found[1], expected[1], strict=True):
        assert torch.equal(cache.view(torch.int16), want.view(torch.int16))
