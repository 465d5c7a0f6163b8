"""The operations of `views` as fused Triton kernels, for CUDA."""
