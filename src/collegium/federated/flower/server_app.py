"""The server's side under Flower: a function of the grid and the run's configuration."""

from collections.abc import Callable, Mapping
from functools import partial

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp


def make_server_app(serve: Callable[[Grid, Mapping[str, object]], None]) -> ServerApp:
    """The app that the SuperLink runs.

    Args:
        serve: from the grid and the run's configuration.
    """
    app = ServerApp()
    app.main()(partial(_main, serve))
    return app


def _main(serve: Callable[[Grid, Mapping[str, object]], None], grid: Grid, context: Context) -> None:
    serve(grid, context.run_config)
