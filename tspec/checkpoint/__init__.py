"""Checkpoints as they lie on disk: safetensors files, their index, `config.json`, and the demo model.

Everything is validated before anything is allocated from it, and every fault is a CheckpointError that names
the file and the tensor or key. Builds no graph and runs no model.

    header      one safetensors file: who lies where
    index       a folder: one file or many shards
    weights     tensors as memory-mapped views; are they the tensors the model needs?
    hf_config   `config.json` into `tspec.core.config.ModelConfig`
    heads       draft heads, EAGLE and Medusa, in all published layouts
    vocabulary  does a draft model speak the target's tokens?
    demo_model  SmolLM2-135M-Instruct as a checkpoint folder
"""
