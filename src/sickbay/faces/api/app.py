"""The ASGI application: the routing table over a backend."""

from collections.abc import Callable
from itertools import groupby

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Mounted

from sickbay.faces.api.credentials import Credentials
from sickbay.faces.api.endpoint import HEADERS, AnsweredKeys, Endpoint, HeldRequests
from sickbay.faces.api.report_queue import ReportQueue
from sickbay.faces.api.route import AppState
from sickbay.faces.api.routes import ROUTES
from sickbay.hosts.backend import Backend
from sickbay.hosts.joining import Joining
from sickbay.hosts.wakeup import Wakeup


def app(
    backend: Backend,
    *,
    leads: Callable[[], bool] | None = None,
    mail: Wakeup | None = None,
    trouble: Callable[[], str] | None = None,
) -> Starlette:
    """`mail` rings when a command was posted for an agent: held polls are then answered at once, not a second later.

    `app.state.close()` ends all that is held and all streams, at once and for good.
    """
    news = Wakeup()
    credentials, answered, held = Credentials(backend), AnsweredKeys(), HeldRequests()
    shared = AppState(
        backend=backend,
        mail=mail or Wakeup(),
        news=news,
        joining=Joining(backend),
        store_report=ReportQueue(backend.receive_all).store,
        leads=leads,
        trouble=trouble,
        uses=credentials.uses,
    )
    by_path = groupby(sorted(ROUTES, key=lambda route: route.mount), key=lambda route: route.mount)
    mounted = [Mounted(path, Endpoint(shared, list(routes), credentials, answered, held)) for path, routes in by_path]
    made = Starlette(routes=mounted, exception_handlers={HTTPException: _nothing_there})
    made.router.redirect_slashes = False
    end = backend.changes.subscribe(news.ring)

    def close() -> None:
        end()
        news.close()
        shared.mail.close()

    made.state.shared = shared
    made.state.close = close
    return made


async def _nothing_there(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    line = f"there is nothing at {request.url.path}: GET / says what there is"
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    return Response(msgspec.json.encode({"error": line}), status, headers, "application/json")
