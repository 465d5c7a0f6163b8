"""Which decoder is taken; rates of 16 cores and of nvJPEG are those of a machine with an H200."""

import pytest

from selfsight.data.decoder_trial import better


@pytest.mark.parametrize(
    ("cpu", "gpu", "streamed", "taken"),
    [
        (4294.0, 4142.0, True, "cpu"),  # 16 cores
        (2800.0, 4142.0, True, "cpu"),  # training beside nvJPEG gets no more: 2,700 to 3,600
        (1400.0, 4142.0, True, "nvjpeg"),
        (5868.0, 14300.0, False, "nvjpeg"),  # nothing else wants the GPU
        (5868.0, 6200.0, False, "cpu"),  # not worth another decoder's pixels
    ],
)
def test_the_gpu_must_win_by_what_training_loses(cpu, gpu, streamed, taken):
    assert better(cpu, gpu, streamed=streamed) == taken
