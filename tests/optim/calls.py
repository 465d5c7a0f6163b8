"""What a step asks of torch."""

from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal"}


class Calls(TorchDispatchMode):
    """The names of all operations, one list of tensors being one; reading a number back raises."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in READS, f"{name}: the host would wait for the device"
        self.names.append(name)
        return function(*args, **kwargs or {})
