"""The choice of a decoder; the speeds were measured on a machine with an H200."""

import pytest

from selfsight.data.decoder_trial import faster_decoder


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
def test_nvjpeg_must_win_by_a_margin(cpu, gpu, streamed, taken):
    assert faster_decoder(cpu, gpu, streamed=streamed) == taken
