"""`GET /v1/users/{user}`: what a user of a log of interactions took."""

from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.errors import ItemIdError, short_repr
from leafbeam.serve.catalog_schema import UserAnswer
from leafbeam.serve.errors import BodyError, Handler, answering
from leafbeam.serve.exchange import BoundedExecutor, json_response
from leafbeam.train import load_log


def user_handlers(users: Path | None, reads: BoundedExecutor) -> dict[str, Handler]:
    """Return the handler by its operation; none without a log. users: the file of the log. reads: the threads that search it.

    Raises:
        DataError: If the file cannot be read as a log.
    """
    if users is None:
        return {}
    log = load_log(interactions=users)

    async def answer(http: HttpRequest) -> Response:
        user = http.path_params["user"]
        try:
            history = await reads.run(lambda: log.history_of(user))
        except ItemIdError:  # its message has ids of other users
            raise BodyError(f"the log has no user {short_repr(user)}", status=HTTPStatus.NOT_FOUND) from None
        return json_response(UserAnswer(user=user, history=tuple(history)))

    return {"get_user": answering(answer)}
