"""Reinforcement-learning post-training of large language models on Megatron-Core and vLLM.

Importing this package imports neither torch nor vLLM: configuration, planning and estimation answer on a login node.
"""

__version__ = "0.1.0"
