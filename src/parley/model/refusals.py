"""Why the network refuses: one class per code, with what the code means written on it.

A refusal is data: a code, a reason within the code, and fields. Certified receipts hold these three and never a
sentence, so that rewording changes no root (P27). `parley.model.texts` turns them into text where a person reads them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta, Struct

from parley.model.texts import render

DUPLICATE = "Duplicate"  # the code of a batch that was applied before
OK = "Ok"
MAX_QUOTED = 140  # characters of a fault, which may quote bytes from outside

Field = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(max_length=64)]
Fields = Annotated[tuple[tuple[Word, Field], ...], Meta(max_length=16)]
# What a client does about it: the same batch again, another broker, something else first, or nothing at all.
Retry = Literal["later", "elsewhere", "changed", "never"]
# What it counts as for those who look for misbehaviour (P19); empty: it is no reason for suspicion.
Suspicion = Literal["", "refusal", "probe", "replay", "reuse"]


class Refusal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A refusal as it travels. `fields` are sorted by name."""

    code: Word
    reason: Word
    fields: Fields

    @property
    def text(self) -> str:
        return render(self.code, self.reason, dict(self.fields))

    def error(self) -> Refused:
        """The exception of this code; for a code that this version does not know, one that only names it."""
        return _CLASSES.get(self.code, Refused).of(self)


class ParleyError(Exception):
    """Anything that Parley raises on purpose."""


class Refused(ParleyError):  # noqa: N818 - it names what happened to the operation, as receipts do
    """The network refused an operation. `code` is stable; `detail` is a sentence."""

    code: ClassVar[str] = "Refused"
    retry: ClassVar[Retry] = "changed"
    status: ClassVar[int] = 400  # of an HTTP answer
    final: ClassVar[bool] = True  # if not, the batch may still be applied when it is ordered again (P3)
    settles: ClassVar[bool] = True  # if not, the batch waits in the pools to be ordered again, for a while
    keeps_place: ClassVar[bool] = False  # of those that wait: its turn comes by itself, not by another batch
    garbage: ClassVar[bool] = False  # no well-meaning client sends this
    stateless: ClassVar[bool] = False  # every honest broker says the same, now and later
    passing: ClassVar[bool] = False  # it only says that this broker cannot answer now
    provable: ClassVar[bool] = False  # a broker has to prove it by entries of the state (P7)
    repeats: ClassVar[bool] = False  # the batch may have been applied before, and come too late this time
    suspicion: ClassVar[Suspicion] = ""

    def __init_subclass__(
        cls,
        *,
        retry: Retry,
        status: int,
        final: bool = True,
        settles: bool = True,
        keeps_place: bool = False,
        garbage: bool = False,
        stateless: bool = False,
        passing: bool = False,
        provable: bool = False,
        repeats: bool = False,
        suspicion: Suspicion = "",
    ) -> None:
        super().__init_subclass__()
        known = _CLASSES.get(cls.__name__)
        free = known is None or known.__module__ == cls.__module__
        assert free, f"the code {cls.__name__} is that of another module; choose another name for the class"
        assert retry in get_args(Retry), f"{retry!r} is not one of {', '.join(get_args(Retry))}"
        cls.code, cls.retry, cls.status = cls.__name__, retry, status
        cls.final, cls.settles, cls.keeps_place = final, settles, keeps_place
        cls.garbage, cls.stateless, cls.passing, cls.provable = garbage, stateless, passing, provable
        cls.repeats, cls.suspicion = repeats, suspicion
        _CLASSES[cls.code] = cls

    def __init__(self, reason: str = "", /, **fields: Field | bytes) -> None:
        """Hashes and keys become hexadecimal digits."""
        super().__init__(reason)
        shown = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
        self.data = Refusal(self.code, reason, tuple(sorted(shown.items())))

    @classmethod
    def of(cls, data: Refusal) -> Refused:
        """The exception with the data as they came, which may be those of another version."""
        error = cls(data.reason)
        error.data = data
        return error

    @property
    def reason(self) -> str:
        return self.data.reason

    @property
    def fields(self) -> dict[str, Field]:
        return dict(self.data.fields)

    @property
    def detail(self) -> str:
        return self.data.text

    def __str__(self) -> str:
        return f"{self.data.code}: {self.detail}"


def class_of(code: str) -> type[Refused]:
    """What a code means; of a code that this version does not know, nothing but that it is a refusal."""
    return _CLASSES.get(code, Refused)


def classes() -> dict[str, type[Refused]]:
    """The classes of all known codes, by code."""
    return dict(_CLASSES)


def is_final(code: str) -> bool:
    return class_of(code).final


_CLASSES: dict[str, type[Refused]] = {}


# -- decided in order, by every broker alike -------------------------------------------------------------------------


class PermissionDenied(Refused, retry="changed", status=403, provable=True, suspicion="probe"):
    """It is not allowed; `rule` is the text of the rule that says so, empty if it is not a rule."""

    @property
    def rule(self) -> str:
        return str(self.fields.get("rule", ""))


class UnknownClient(Refused, retry="changed", status=403, provable=True, suspicion="refusal"):
    """The key is not registered; an administrator of its organisation has to do that."""


class Revoked(Refused, retry="never", status=403, provable=True, suspicion="replay"):
    """The client was revoked; its key never becomes valid again."""


class Unsupported(Refused, retry="changed", status=501, suspicion="refusal"):
    """Brokers of this version cannot do it."""


class LimitExceeded(Refused, retry="changed", status=429, suspicion="refusal"):
    """There would be more of something than is allowed; `limit` is how many are."""


class Invalid(Refused, retry="changed", status=422, suspicion="refusal"):
    """The operation contradicts itself or the state."""


class OutOfSequence(Refused, retry="later", status=409, final=False, settles=False):
    """A batch came before its turn; it is ordered again."""


class SequenceReused(Refused, retry="never", status=409, suspicion="reuse"):
    """Another batch was applied under this session and sequence: another program uses the same key and session."""


class Expired(Refused, retry="changed", status=410, final=False, repeats=True, suspicion="replay"):
    """The batch may not be applied at this height."""


# -- decided by one broker, before order -----------------------------------------------------------------------------


class Malformed(Refused, retry="changed", status=400, garbage=True, stateless=True):
    """It is not well formed; `fault` says what is wrong."""


class Oversized(Refused, retry="changed", status=413, stateless=True):
    """It is larger than allowed."""


class BadSignature(Refused, retry="never", status=401, garbage=True, stateless=True):
    """It is not signed by the key that it names."""


class WrongChain(Refused, retry="never", status=421, garbage=True, stateless=True):
    """The broker belongs to another network: compare the genesis files."""


class WrongLedger(Refused, retry="never", status=421, garbage=True, stateless=True):
    """The batch was made for another ledger of the network; it uses up nothing here."""


class NotAuthenticated(Refused, retry="changed", status=401):
    """The credential does not admit its holder."""


class Busy(Refused, retry="later", status=503, final=False, settles=False, keeps_place=True, passing=True):
    """There is no room now. In a receipt: nothing is decided, and it is ordered again (decision 9)."""


class NotFound(Refused, retry="elsewhere", status=404, passing=True):
    """This broker does not have it; another one may."""


class NotReady(Refused, retry="elsewhere", status=503, passing=True):
    """This broker cannot answer yet; another one may."""


def malformed(what: str, fault: object) -> Malformed:
    """A refusal of this reason. Its fault may quote what was sent, so it is cut."""
    text = str(fault)
    return Malformed(what, fault=text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 3] + "...")
