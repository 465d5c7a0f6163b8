"""Serve the report of a run on this machine, until Ctrl-C."""

import signal
import threading

import torch

from selfsight import report_page
from selfsight.data.image_limits import max_image_bytes
from selfsight.encoders.load_encoder import load_recipe
from selfsight.errors import StoppedError
from selfsight.options.report_options import ReportOptions
from selfsight.report_page.serve_page import LOOPBACK, build_server
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import open_console
from selfsight.vectors.query_image import build_finder


def serve_report(run: Run, device: torch.device, options: ReportOptions) -> None:
    """Serve the report of a run, with a search for images similar to any other; Ctrl-C ends it."""
    page = report_page.build(run, served=True)
    recipe = load_recipe(run, trust=options.trust)
    find = build_finder(run, recipe, device, trust=options.trust)
    server = build_server(page, find, port=options.port, max_bytes=max_image_bytes())
    if threading.current_thread() is threading.main_thread():  # Python's rule for handlers
        signal.signal(signal.SIGINT, signal.default_int_handler)
    console = open_console()
    console.print(
        f"Serving the report of {run.path} at http://{LOOPBACK}:{server.server_port}/ for this "
        "machine alone. Ctrl-C ends it.",
        soft_wrap=True,
        markup=False,
    )
    console.file.flush()  # it may be a file that is followed
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        raise StoppedError(f"stopped serving {run.path}.", signal.SIGINT) from None
    finally:
        server.server_close()
