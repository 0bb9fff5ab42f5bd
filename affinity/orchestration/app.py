"""An application: the registered activities and orchestrations, by name."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, cast, overload, runtime_checkable

from pydantic_core import to_json

from affinity.errors import InvalidApp, InvalidId, OrchestrationMisuse
from affinity.limits import MAX_SCHEMAS_BYTES, check_code_name, check_tag
from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.context import OrchestrationContext
from affinity.orchestration.definitions import (
    DEFINITION_ATTRIBUTE,
    ActivityDefaults,
    ActivityDefinition,
    Definition,
    OrchestrationDefinition,
    Prefetch,
    check_decorators,
    check_retry,
    check_timeout,
    definition_of,
    qualname,
    refuse_other_context,
)
from affinity.orchestration.gates import HasLimitUse, check_uses
from affinity.orchestration.middleware import (
    MiddlewareForm,
    Observer,
    ObserverForm,
    check_middleware,
    check_observer,
)
from affinity.orchestration.retry import RetryPolicy
from affinity.orchestration.schemas import interface_of, schemas_of
from affinity.records import Hydrate
from affinity.user_code import is_interactive, is_rerun

ActivityForm = TypeVar("ActivityForm", bound=Callable[[ActivityContext], Any] | Callable[[ActivityContext, Any], Any])
OrchestrationForm = TypeVar(
    "OrchestrationForm",
    bound=Callable[[OrchestrationContext], Coroutine[Any, Any, Any]]
    | Callable[[OrchestrationContext, Any], Coroutine[Any, Any, Any]],
)

DEFAULT_VERSION: Final = "1.0.0"

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


@runtime_checkable
class Destroyable(Protocol):
    """A resource that outlives a process: `affinity.Resource` with ``create``."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    async def _destroy_now(self, resource_id: str, handle: Any) -> bool:
        """Free it; False: it has failed."""
        ...


@runtime_checkable
class SessionListener(Protocol):
    """Receives the worker's session leases that end, such as `affinity.SessionCache`; called on the event loop."""

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        """The worker no longer holds the session's lease (of this epoch)."""
        ...

    async def sweep(self) -> None:
        """Evict state that was idle for too long; called about once a second."""
        ...


@runtime_checkable
class DatabaseListener(Protocol):
    """A listener that knows the sessions of several databases apart, such as `affinity.Sessions`: their ids may be
    equal, and their epochs cannot be compared.
    """

    def _in_database(self, database: str) -> SessionListener:
        """The listener that a worker of this database notifies in place of this one."""
        ...


@runtime_checkable
class AssignmentListener(Protocol):
    """A session listener that is also notified of sessions that are to move to this worker."""

    async def on_assigned(self, session_id: str) -> None:
        """The session will move to this worker when its running work on the holder has ended; it may stay after all.
        Called once for each move, concurrently with the worker's own work: load ahead whatever its activities will
        need. Nothing waits for it.
        """
        ...


@runtime_checkable
class MovePolicy(Protocol):
    """A listener that may keep sessions on their worker, such as `affinity.Sessions`."""

    def _may_move(self, session_id: str) -> bool:
        """Whether the session may be offered to another worker while it is idle."""
        ...


@runtime_checkable
class HasCostlySessions(Protocol):
    """A listener that knows which sessions are costly to give up, such as `affinity.Sessions`."""

    def _costly_sessions(self) -> Collection[str]:
        """The sessions that keep something open in this process, or whose state may not move: they are the last to make
        room for others.
        """
        ...


@runtime_checkable
class HasMigrations(Protocol):
    """A listener with migrations, which a worker checks at its start, such as `affinity.Sessions`."""

    def _check_migrations(self) -> None:
        """Raise the errors of the migrations that a load would raise."""
        ...


@runtime_checkable
class HasHydrates(Protocol):
    """A listener that hydrates sessions, such as `affinity.Sessions`; a worker reports what it has cost."""

    def _take_hydrates(self) -> Iterator[Hydrate]:
        """Each hydrate since the last call."""
        ...


@runtime_checkable
class HasFunctions(Protocol):
    """A listener with functions of its own: how a layer above registers its orchestrations and activities."""

    @property
    def _noun(self) -> str:
        """What it defines, in the plural."""
        ...

    @property
    def kind(self) -> str:
        """Kind of its definitions: an app has one such listener for each kind."""
        ...

    def _functions(self) -> KernelApp:
        """Its activities and orchestrations."""
        ...

    def _sources(self) -> Iterable[Callable[..., Any]]:
        """The application's functions that these call: their files distinguish one release from another."""
        ...


class Declaration(Protocol):
    """Something that the code of a guest declares for the worker, such as a schedule. Equal ones count once."""

    def to_text(self) -> str:
        """Return it as text: a part of the version of the code."""
        ...


@runtime_checkable
class HasInputTypes(Protocol):
    """A listener with functions, to which clients send typed events."""

    def _input_types(self) -> Mapping[str, Any]:
        """The types of the application's events that clients may send, by name."""
        ...


class KernelApp:
    """The registry of the kernel; `affinity.App` has the declarations of the guests too."""

    def __init__(self, name: str = "app") -> None:
        self.name: str = _checked_name(name, "app name")
        self._activities: dict[str, ActivityDefinition] = {}
        self._orchestrations: dict[str, OrchestrationDefinition] = {}
        self._latest: dict[str, OrchestrationDefinition] = {}
        self._session_listeners: list[SessionListener] = []
        self._resources: list[Destroyable] = []
        self._declared: dict[str, dict[str, Declaration]] = {}
        self._middleware: list[Callable[..., Any]] = []
        self._inner_middleware: dict[str, tuple[Callable[..., Any], ...]] = {}  # of included apps, by their activities
        self._observers: list[Observer] = []

    @property
    def activities(self) -> Mapping[str, ActivityDefinition]:
        """The registered activities, by name."""
        return MappingProxyType(self._activities)

    @property
    def orchestrations(self) -> Mapping[str, OrchestrationDefinition]:
        """The registered orchestrations, by ``name@version``."""
        return MappingProxyType(self._orchestrations)

    @property
    def session_listeners(self) -> tuple[SessionListener, ...]:
        """The listeners that a worker of this app notifies of session leases that end."""
        return tuple(self._session_listeners)

    @overload
    def activity(self, function: ActivityForm, /) -> ActivityForm: ...
    @overload
    def activity(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        limits: Sequence[HasLimitUse] = (),
        tag: str | None = None,
        prefetch: Prefetch | None = None,
    ) -> Callable[[ActivityForm], ActivityForm]: ...
    def activity(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        limits: Sequence[HasLimitUse] = (),
        tag: str | None = None,
        prefetch: Prefetch | None = None,
    ) -> Any:
        """Register an activity, sync or async, under ``name`` or its own name.

        ``retry``, ``timeout``, ``limits`` and ``tag`` count for each call of `OrchestrationContext.schedule_activity`
        with this function that does not have its own. A change of them counts for later calls; work that is scheduled
        already keeps what it has.

        Args:
            function: the activity, if the decorator is used without arguments.
            name: of the activity.
            retry: the retry policy; None: one attempt.
            timeout: seconds, or a timedelta, that one attempt may take; None: any time.
            limits: where it waits for room before it runs: see `ActivityFuture.limited`. The app declares them.
            tag: only workers with this tag run it: see `ActivityFuture.with_tag`.
            prefetch: for guests: what the activity begins with. None: nothing that a guest keeps.

        Raises:
            InvalidApp: the name is taken or not allowed, or the signature is not (context) or (context, input).
            InvalidOptions: an option is out of range; ``prefetch.most`` is no integer from 0.
            InvalidLimit: a limit is refused, or the app has another one of its name.
            InvalidId: the tag is not allowed.
        """
        defaults = ActivityDefaults(
            retry=check_retry(retry),
            timeout=check_timeout(timeout),
            tag=None if tag is None else check_tag(tag),
            limits=check_uses(limits),
        )

        def register(function: ActivityForm) -> ActivityForm:
            called = _name_of(function, name, "activity")
            definition = ActivityDefinition(called, function, prefetch, defaults=defaults, limits=limits)
            refuse_other_context(definition.description, function, ActivityContext)
            self._add_activity(definition)
            _attach(function, definition)
            definition.reference = reference = _refusing_orchestrations(function, definition)
            return reference

        return register if function is None else register(function)

    @overload
    def orchestration(self, function: OrchestrationForm, /) -> OrchestrationForm: ...
    @overload
    def orchestration(
        self, *, name: str | None = None, version: str = DEFAULT_VERSION
    ) -> Callable[[OrchestrationForm], OrchestrationForm]: ...
    def orchestration(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None, version: str = DEFAULT_VERSION
    ) -> Any:
        """Register an ``async def`` as an orchestration, under ``name`` or its own name.

        Several versions of one name can be registered. New instances start on the latest version. A running instance
        keeps its version.

        Raises:
            InvalidApp: name and version are taken or not allowed, it is not an ``async def``, or the signature is not
                (context) or (context, input).
        """

        def register(function: OrchestrationForm) -> OrchestrationForm:
            checked = _checked_name(version, "orchestration version")
            definition = OrchestrationDefinition(_name_of(function, name, "orchestration"), checked, function)
            refuse_other_context(definition.description, function, OrchestrationContext)
            self._add_orchestration(definition)
            _attach(function, definition)
            return function

        return register if function is None else register(function)

    def middleware(self, function: MiddlewareForm, /) -> MiddlewareForm:
        """Register a function that goes around each activity, wake, step and tool of the app. ::

            @app.middleware
            async def timed(call: affinity.MiddlewareCall, next: affinity.Next) -> Any:
                began = time.monotonic()
                try:
                    return await next()
                finally:
                    SECONDS.labels(call.kind, call.name).observe(time.monotonic() - began)

        The first one that is registered is the outermost. What it returns is the result of the call, and what it raises
        is the call's error, with its retries and its ``timeout``. It may call ``next`` again, or not at all. Around a
        function that is not async, one that is not async runs in the same thread, without ``await``; around other code
        it has a thread of its own, which waits.

        Those of an included app go around what that app brings, inside the ones of this app. Code of orchestrations has
        none, since it is replayed: see `observe_turns`.

        Raises:
            InvalidApp: it is not a function of two arguments.
        """
        check_middleware(function)
        self._middleware = [one for one in self._middleware if not is_rerun(one, function) and one is not function]
        self._middleware.append(function)
        return function

    def observe_turns(self, function: ObserverForm, /) -> ObserverForm:
        """Register a function that is called with each turn of an orchestration that a worker has committed: for
        metrics and logs. It is not called in replay, and not for a turn whose commit was lost. It runs on the event
        loop, so it must not block; what it raises is logged, and changes nothing. A worker that is killed behind the
        commit does not call it.

        Raises:
            InvalidApp: it is not a function of one argument, or async.
        """
        check_observer(function)
        self._observers = [one for one in self._observers if not is_rerun(one, function) and one is not function]
        self._observers.append(function)
        return function

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The functions that `observe_turns` has registered."""
        return tuple(self._observers)

    def middleware_of(self, activity: str) -> tuple[Callable[..., Any], ...]:
        """The middleware around an activity, or the wakes that it runs; the first one is the outermost."""
        return (*self._middleware, *self._inner_middleware.get(activity, ()))

    def find_orchestration(self, name: str, version: str | None = None) -> OrchestrationDefinition | None:
        """Return the orchestration in that version, or in the latest; None if it is not registered.

        "1.10.0" is later than "1.9.0", and "2.0.0" later than "2.0.0-rc1".
        """
        return self._latest.get(name) if version is None else self._orchestrations.get(f"{name}@{version}")

    @property
    def resources(self) -> tuple[Destroyable, ...]:
        """The resources that a worker of this app destroys when nothing uses them."""
        return tuple(self._resources)

    @property
    def declared(self) -> Mapping[str, Mapping[str, Declaration]]:
        """What guests have declared for the worker: by its noun, in the plural, and by name."""
        return MappingProxyType(self._declared)

    def _declare(self, noun: str, name: str, declaration: Declaration) -> None:
        """Declare something for the worker, once under each name.

        Raises:
            InvalidApp: the name is taken.
        """
        if name in self._declared.get(noun, {}) and not is_interactive():
            raise self._declared_twice(noun, name)
        self._declared.setdefault(noun, {})[name] = declaration

    def _declared_twice(self, noun: str, name: str) -> InvalidApp:
        return InvalidApp(f"app {self.name!r} has two {noun} named {name!r}")

    def include(self, other: KernelApp | SessionListener | Destroyable) -> None:
        """Register all functions and listeners of another app; or a listener, such as `affinity.Sessions` or
        `affinity.SessionCache`, which workers notify of the sessions that they lose; if it has functions
        (`affinity.orchestration.app.HasFunctions`), these too. Or an `affinity.Resource` that outlives the process,
        which workers destroy when no session uses it any more.

        Raises:
            InvalidApp: a name (and version) is taken by another function, or a kind by another handler; then nothing
                is registered. Or ``other`` is neither an app nor a listener.
        """
        if isinstance(other, KernelApp):
            self._include_app(other)
        elif isinstance(other, Destroyable):
            self._include_resource(other)
        elif not isinstance(other, SessionListener):
            raise InvalidApp(f"app {self.name!r} can include an App, Sessions or SessionCache, not {other!r}")
        elif other not in self._session_listeners:
            self._refuse_other_handler(other)
            self._remove_handler(other)
            if isinstance(other, HasFunctions):
                self._include_app(other._functions())
            self._session_listeners.append(other)

    def _include_resource(self, resource: Destroyable) -> None:
        if not resource.name:
            raise InvalidApp(f"app {self.name!r} can include a Resource with create=, which outlives the process")
        if resource in self._resources:
            return
        others = [each for each in self._resources if each.name != resource.name]
        if len(others) < len(self._resources) and not is_interactive():
            raise InvalidApp(f"app {self.name!r} has another resource named {resource.name!r}")
        self._resources = [*others, resource]

    def _refuse_other_handler(self, new: SessionListener) -> None:
        """Refuse a second handler of one kind."""
        if new in self._session_listeners or not isinstance(new, HasFunctions):
            return
        for present in self._handlers_like(new):
            if not all(map(is_rerun, present._sources(), new._sources())):
                names = " and ".join(qualname(source) for one in (present, new) for source in one._sources())
                raise InvalidApp(
                    f"app {self.name!r} has two handlers for {new._noun} of kind {new.kind!r} ({names}): give one of "
                    "them another kind"
                )

    def _handlers_like(self, new: HasFunctions) -> list[HasFunctions]:
        found = [one for one in self._session_listeners if isinstance(one, HasFunctions)]
        return [one for one in found if (one._noun, one.kind) == (new._noun, new.kind)]

    def _remove_handler(self, new: SessionListener) -> None:
        """Remove the handler that a new one takes the place of, with its functions."""
        if new in self._session_listeners or not isinstance(new, HasFunctions):
            return
        for former in self._handlers_like(new):
            self._session_listeners.remove(cast(SessionListener, former))
            for name in former._functions().activities:
                self._activities.pop(name, None)
            for key, orchestration in former._functions().orchestrations.items():
                self._orchestrations.pop(key, None)
                self._latest.pop(orchestration.name, None)

    def _include_app(self, other: KernelApp) -> None:
        for listener in other._session_listeners:
            self._refuse_other_handler(listener)
            self._remove_handler(listener)
        for noun, declarations in other._declared.items():
            for name, declaration in declarations.items():
                if self._declared.get(noun, {}).get(name, declaration) != declaration and not is_interactive():
                    raise self._declared_twice(noun, name)
        for activity in other._activities.values():
            self._refuse_taken(self._activities.get(activity.name), activity)
        for orchestration in other._orchestrations.values():
            self._refuse_taken(self._orchestrations.get(orchestration.key), orchestration)
        for activity in other._activities.values():
            self._add_activity(activity)
        for orchestration in other._orchestrations.values():
            self._add_orchestration(orchestration)
        for listener in other._session_listeners:
            self.include(listener)
        for resource in other._resources:
            self.include(resource)
        for noun, declarations in other._declared.items():
            self._declared.setdefault(noun, {}).update(declarations)
        inner = {name: other.middleware_of(name) for name in other._activities}
        self._inner_middleware |= {name: middleware for name, middleware in inner.items() if middleware}
        self._observers += [one for one in other._observers if one not in self._observers]

    def registered(self) -> dict[str, dict[str, str]]:
        """A digest of each function by name: ``orchestrations`` (``name@version``), ``activities``, and by kind the
        ones of each ``noun`` of a layer. Workers store it, so that others can see what they have code for.
        """
        found = {
            "orchestrations": {key: digest_of(each.function) for key, each in self._orchestrations.items()},
            "activities": {name: digest_of(each.function) for name, each in self._activities.items()},
        }
        for one in self._session_listeners:
            if isinstance(one, HasFunctions):
                found.setdefault(one._noun, {})[one.kind] = digest_of(*one._sources())
        return found

    def interfaces(self) -> dict[str, dict[str, Any]]:
        """What the functions take (`affinity.orchestration.schemas.interface_of`), by the kinds and names of
        `registered`; of activities and of the functions of layers above it is not shown. Workers store it. Without
        those for which `limits.MAX_SCHEMAS_BYTES` leave no room.
        """
        layers = [one for one in self._session_listeners if isinstance(one, HasFunctions)]
        own = {key for one in layers for key in one._functions().orchestrations}
        found: list[tuple[str, str, dict[str, Any]]] = [
            ("orchestrations", key, interface_of(each)) for key, each in self._orchestrations.items() if key not in own
        ]
        typed = [one for one in layers if isinstance(one, HasInputTypes)]
        found += [(one._noun, one.kind, {"events": schemas_of(one._input_types())}) for one in typed]
        room = MAX_SCHEMAS_BYTES
        fitting: dict[str, dict[str, Any]] = {}
        for kind, name, interface in found:
            room -= len(to_json(interface))
            if room >= 0:
                fitting.setdefault(kind, {})[name] = interface
        return fitting

    @property
    def guest_activities(self) -> frozenset[str]:
        """Names of the activities of session listeners, which are no code of the application itself."""
        layers = [one for one in self._session_listeners if isinstance(one, HasFunctions)]
        return frozenset(name for one in layers for name in one._functions().activities)

    def check(self) -> None:
        """Resolve every annotation, and check the migrations of the listeners, as a worker does at its start.

        Raises:
            InvalidApp: an annotation cannot be resolved, or has no JSON form; a decorator stands above the one that
                registers a function.
            SessionMigrationAmbiguous: two shortest chains of migrations lead to the schema version of a `Sessions`.
        """
        definitions: list[Definition] = [*self._activities.values(), *self._orchestrations.values()]
        for definition in definitions:
            _ = definition.input_codec, definition.result_codec
            check_decorators(definition.function, definition.reference, definition.description)
        for listener in self._session_listeners:
            if isinstance(listener, HasFunctions):
                for function in listener._sources():
                    check_decorators(function, function, f"the handler of {listener._noun} {listener.kind!r}")
        check_listeners(self._session_listeners)

    def _add_activity(self, definition: ActivityDefinition) -> None:
        self._refuse_taken(self._activities.get(definition.name), definition)
        self._activities[definition.name] = definition

    def _add_orchestration(self, definition: OrchestrationDefinition) -> None:
        self._refuse_taken(self._orchestrations.get(definition.key), definition)
        self._orchestrations[definition.key] = definition
        latest = self._latest.get(definition.name)
        if latest is None or version_order(definition.version) >= version_order(latest.version):
            self._latest[definition.name] = definition

    def _refuse_taken(self, present: Definition | None, new: Definition) -> None:
        if present is not None and present is not new and not is_rerun(present.function, new.function):
            raise InvalidApp(f"app {self.name!r} has two of {new.description}: give one another name or version")


def check_listeners(listeners: Iterable[SessionListener]) -> None:
    """Check the migrations of the listeners that have some."""
    for listener in listeners:
        if isinstance(listener, HasMigrations):
            listener._check_migrations()


def digest_of(*functions: Callable[..., Any]) -> str:
    """Hex digits that stand for the modules and qualified names of functions, "." and others for their signatures: the
    same in each process, for a change of the body too. Default values are left out: their texts can differ from process
    to process.
    """
    places, signatures = sha256(), sha256()
    for each in map(inspect.unwrap, functions):
        signature = inspect.signature(each)
        parameters = [one.replace(default=inspect.Parameter.empty) for one in signature.parameters.values()]
        shown = _ADDRESS.sub("", str(signature.replace(parameters=parameters)))
        places.update(f"{_module_of(each)}\0{getattr(each, '__qualname__', type(each).__qualname__)}\0".encode())
        signatures.update(f"{shown}\0".encode())
    return f"{places.hexdigest()[:12]}.{signatures.hexdigest()[:8]}"


def _module_of(function: Callable[..., Any]) -> str:
    """Its module; of the main module the name that others import it by, as far as it is known."""
    name = getattr(function, "__module__", None) or type(function).__module__
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)
    return Path(getattr(main, "__file__", None) or name).stem


def _attach(function: Callable[..., Any], definition: Definition) -> None:
    """Store the definition on the function, which is the reference to it."""
    present = definition_of(function)
    if present is not None and (present.description != definition.description):
        raise InvalidApp(f"{qualname(function)} is registered already, as {present.description}")
    # A bound method takes no attributes; its function does.
    try:
        setattr(getattr(function, "__func__", function), DEFINITION_ATTRIBUTE, definition)
    except (AttributeError, TypeError):
        raise InvalidApp(
            f"{definition.description}: {type(function).__name__} takes no attributes: register a function in its place"
        ) from None


def _refusing_orchestrations(function: ActivityForm, definition: ActivityDefinition) -> ActivityForm:
    """A function of the application, as its module sees it: called with an orchestration's context it would run in the
    orchestration, unrecorded, and again in each replay.
    """
    if not inspect.isfunction(function):
        return function  # a method or an object, which a wrapper would not stand for

    def check(arguments: tuple[Any, ...]) -> None:
        if arguments and hasattr(arguments[0], "schedule_activity"):
            raise OrchestrationMisuse(
                f"{definition.description} is called within an orchestration: use "
                f"ctx.schedule_activity({function.__name__}, ...), which runs it once and records its result"
            )

    @functools.wraps(function)
    async def refusing_async(*args: Any, **kwargs: Any) -> Any:
        check(args)
        return await function(*args, **kwargs)

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        check(args)
        return function(*args, **kwargs)

    return cast(ActivityForm, refusing_async if definition.is_async else refusing)


def _name_of(function: Callable[..., Any], name: str | None, kind: str) -> str:
    if isinstance(function, str):
        raise InvalidApp(f"a name is given by keyword: @app.{kind}(name={function!r})")
    if isinstance(function, staticmethod | classmethod):
        raise InvalidApp(f"{function!r}: put @{type(function).__name__} above @app.{kind}, or register a function")
    if not callable(function) or isinstance(function, type):
        raise InvalidApp(f"only functions can be registered, not {function!r}")
    if name is None and not hasattr(function, "__name__"):
        raise InvalidApp(
            f"{function!r} has no name of its own: give it one, as in app.{kind}(name=...)(...), or register a "
            "function that calls it"
        )
    return _checked_name(name if name is not None else getattr(function, "__name__", None), "name of a function")


def _checked_name(name: object, what: str) -> str:
    try:
        return check_code_name(name, what)
    except InvalidId as error:
        raise InvalidApp(str(error)) from error


def version_order(version: str) -> tuple[Any, ...]:
    """Sorts versions of one name: "1.10.0" is later than "1.9.0", and "2.0.0" later than "2.0.0-rc1"."""
    release, _, prerelease = version.partition("-")
    # A pre-release precedes its release; the text orders spellings of one version.
    return _numbers(release), not prerelease, _numbers(prerelease), version


def _numbers(text: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"\d+|[A-Za-z]+", text)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
