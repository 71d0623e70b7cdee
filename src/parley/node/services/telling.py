"""Questions about the broker itself: its status, and how far its readers say that they are."""

from __future__ import annotations

from msgspec.structs import replace

from parley.net.messages import Advise, Advised, Status, StatusRequest
from parley.node.advisories import ADVISORY_WORK, LOOK_WORK
from parley.node.services.asking import Asking, Services
from parley.node.services.service import Acting, Cost, Right


def _status(asking: Asking, question: StatusRequest) -> Status:
    services = asking.services
    readers = services.advisories.shown(services.newest_view(), asking.caller)
    return replace(services.reporter.report(question.id), readers=readers)


def _advise(asking: Asking, question: Advise) -> Advised:
    services = asking.services
    services.advisories.take(services.fresh_view(), asking.caller, question)
    return Advised(question.id)


def _look_work(services: Services) -> int:
    return services.advisories.look_work


SERVICES = (
    Acting(
        question=StatusRequest,
        right=Right("anyone; advisories: the reader, and administrators of its or the topic's organisation"),
        cost=Cost(f"{LOOK_WORK} bytes for each advisory that is kept, shown or not", before=_look_work),
        act=_status,
    ),
    Acting(
        question=Advise,
        right=Right("readers of the topic, for themselves"),
        cost=Cost(f"{ADVISORY_WORK // 1024} KiB", before=ADVISORY_WORK),
        act=_advise,
    ),
)
