"""Plugins: what they bring, what becomes of it without them, and what two of them cannot both bring."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.errors import StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.key import KeyScope
from keepstate.typed.persisted import PersistedState
from keepstate.typed.ready_keys import RegisterKey
from keepstate.typed.registry import Keys, PluginRegistrar, StateKeyOptions
from keepstate.typed.state import KeyedState
from tests.contracts.typed.keys import (
    Draft,
    FirstName,
    Locale,
    Notes,
    Plan,
    Score,
    Socket,
    Visits,
    many,
)
from tests.contracts.typed.stage import TypedStage, update


class BranchEventLog:
    """Brings a list."""

    name = "diary"
    options: StateKeyOptions | None = None

    def register(self, registrar: PluginRegistrar) -> None:
        """Register the list."""
        registrar.register_key(Notes, self.options)


class Journal(BranchEventLog):
    """Brings the same list."""

    name = "journal"


class Keeping(BranchEventLog):
    """Brings the list, and leaves what is in it."""

    options = StateKeyOptions(retain_on_uninstall=True)


def register_key_of(kind: Any) -> Any:
    """Return a key; every one has the same name."""

    class Held(RegisterKey[kind]):
        """A value of this kind."""

        KEY = "held"

    return Held


class PluginContract(TypedStage):
    """`install_plugin`, `uninstall_plugin`, options, and values of plugins that are not there."""

    async def test_a_plugin_is_any_object_that_registers(self) -> None:
        state = await self.state(keys=())

        await state.install_plugin(BranchEventLog())
        await state.commit(update(Notes, ["a"]))

        assert state.read(Notes) == ["a"]

    async def test_a_plugin_of_more_values_than_a_batch_holds_is_uninstalled(self) -> None:
        keys = many(1100)
        state = await self.state(keys=[Visits], plugins=[Keys(keys, "many")])
        await state.commit(update(Visits, 1))
        for begin in range(0, len(keys), 550):
            batch = MutationBatch()
            for key in keys[begin : begin + 550]:
                batch.update(key, 1)
            await state.commit(batch)

        await state.uninstall_plugin("many")

        assert state.export_persisted().extensions == {"visits": 1}
        assert (await self.state()).export_persisted().extensions == {"visits": 1}

    async def test_in_a_transaction_that_fails_a_plugin_stays_as_it_was(self) -> None:
        space, states = self.handle().space("shared"), list[KeyedState]()
        await (await self.state(space=space)).commit(update(Notes, ["a"]))

        async def fail() -> None:
            async with space.transaction() as tx:
                states.append(await self.state(space=tx, keys=(), plugins=[BranchEventLog()]))
                await states[0].uninstall_plugin(BranchEventLog())
                await states[0].install_plugin(Keys([Plan], "plans"))
                assert states[0].read(Notes) is None
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

        assert states[0].read(Notes) == ["a"]
        with pytest.raises(StateError, match="'plan'"):
            await states[0].commit(update(Plan, "p"))

    async def test_two_classes_that_one_function_makes_are_two_keys(self) -> None:
        number, text = register_key_of(int), register_key_of(str)

        with pytest.raises(StateError, match="registered twice"):
            await self.state(keys=[number, text])
        state = await self.state(keys=[number])
        with pytest.raises(StateError, match="'held' is registered as"):
            await state.commit(update(text, "a"))
        await state.commit(update(register_key_of(int), 1))

        assert state.read(number) == 1
        with pytest.raises(StateError, match="'held' is registered as"):
            state.read(text)

    async def test_what_was_stored_is_read_once_its_plugin_is_there(self) -> None:
        await (await self.state()).commit(update(Notes, ["a"]))
        state = await self.state(keys=())
        assert state.read(Notes) is None

        await state.install_plugin(BranchEventLog())

        assert state.read(Notes) == ["a"]

    async def test_uninstalling_removes_the_values_of_its_keys_here_and_in_the_store(self) -> None:
        state = await self.state(keys=[Visits], plugins=[BranchEventLog()])
        await state.commit(update(Notes, ["a"]).update(Visits, 1))

        await state.uninstall_plugin(BranchEventLog)

        assert (state.read(Notes), state.read(Visits)) == (None, 1)
        with pytest.raises(StateError, match="not registered"):
            await state.commit(update(Notes, ["b"]))
        assert (await self.state()).read(Notes) is None

    async def test_what_is_retained_outlives_its_plugin_and_a_restart(self) -> None:
        state = await self.state(keys=[], plugins=[Keeping()])
        await state.commit(update(Notes, ["a"]))

        await state.uninstall_plugin("diary")

        assert state.read(Notes) is None
        assert state.export_persisted().extensions == {"notes": ["a"]}
        later = await self.state(keys=[])
        await later.install_plugin(Keeping())
        assert later.read(Notes) == ["a"]

    async def test_what_is_retained_and_not_persistent_stays_out_of_the_store(self) -> None:
        class Sockets:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Socket, StateKeyOptions(retain_on_uninstall=True))

        state = await self.state(keys=[], plugins=[Sockets()])
        await state.commit(update(Socket, 1))
        await state.uninstall_plugin(Sockets)

        assert state.export_persisted().extensions == {}
        await state.install_plugin(Sockets())
        assert state.read(Socket) == 1

    async def test_a_key_that_is_stored_from_now_on_is_no_longer_in_memory_alone(self) -> None:
        class Sockets:
            name = "sockets"

            def __init__(self, *, persistent: bool) -> None:
                self.options = StateKeyOptions(persistent=persistent, retain_on_uninstall=True)

            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Socket, self.options)

        state = await self.state(keys=[], plugins=[Sockets(persistent=False)])
        await state.commit(update(Socket, 1))
        await state.uninstall_plugin("sockets")
        await state.install_plugin(Sockets(persistent=True))
        await state.commit(update(Socket, 5))
        other = await self.state(keys=[], plugins=[Sockets(persistent=True)])
        assert other.read(Socket) == 5
        await other.restore_persisted(PersistedState(50, {}))

        await state.refresh()

        assert state.read(Socket) is None

    async def test_values_of_a_plugin_that_is_not_loaded_survive_a_run_without_it(self) -> None:
        await (await self.state()).commit(update(Notes, ["a"]))
        without = await self.state(keys=[Visits])

        await without.commit(update(Visits, 1))

        assert without.export_persisted().extensions == {"notes": ["a"], "visits": 1}
        assert (await self.state()).read(Notes) == ["a"]

    async def test_a_run_scoped_value_is_restored_without_its_plugin_and_is_there_for_it(
        self,
    ) -> None:
        class Drafts:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Draft)

        whole = await self.state()
        await whole.commit(update(Draft, "d").update(Visits, 1))
        without = await self.state(keys=[Visits], space=self.handle().space("elsewhere"))

        await without.restore_persisted(whole.export_persisted())

        assert without.export_persisted() == whole.export_persisted()
        await without.install_plugin(Drafts())
        assert without.read(Draft) == "d"
        assert without.export_persisted() == whole.export_persisted()

    async def test_two_plugins_with_one_key_are_refused_and_both_named(self) -> None:
        state = await self.state(keys=[], plugins=[BranchEventLog()])

        with pytest.raises(StateError, match=r"diary.*journal") as refused:
            await state.install_plugin(Journal())

        assert refused.value.state_key == "notes"
        with pytest.raises(StateError, match="journal is not installed"):
            await state.uninstall_plugin("journal")

    async def test_of_a_plugin_that_is_refused_nothing_is_registered(self) -> None:
        class Both:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Plan)
                registrar.register_key(Notes)

        state = await self.state(keys=[], plugins=[BranchEventLog()])

        with pytest.raises(StateError):
            await state.install_plugin(Both())

        with pytest.raises(StateError, match="'plan' is not registered"):
            await state.commit(update(Plan, "a"))

    async def test_a_plugin_is_installed_once(self) -> None:
        state = await self.state(keys=[], plugins=[BranchEventLog()])

        with pytest.raises(StateError, match="already installed"):
            await state.install_plugin(BranchEventLog())

    async def test_one_key_with_other_options_is_refused_and_with_the_same_taken(self) -> None:
        class Twice:
            def __init__(self, options: StateKeyOptions) -> None:
                self.options = options

            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Visits)
                registrar.register_key(Visits, self.options)

        state = await self.state(keys=[])

        with pytest.raises(StateError, match="twice"):
            await state.install_plugin(Twice(StateKeyOptions(scope=KeyScope.RUN)))
        await state.install_plugin(Twice(StateKeyOptions(scope=KeyScope.THREAD, persistent=True)))

    async def test_options_stand_in_place_of_what_the_class_says(self) -> None:
        class Other:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Visits, StateKeyOptions(persistent=False))
                registrar.register_key(Socket, StateKeyOptions(persistent=True))
                registrar.register_key(Draft, StateKeyOptions(scope=KeyScope.THREAD))

        state = await self.state(keys=[], plugins=[Other()])
        await state.commit(update(Visits, 1).update(Socket, 2).update(Draft, "a"))
        await state.clear_run_scoped()

        assert state.export_persisted().extensions == {"socket": 2, "draft": "a"}
        assert (state.read(Visits), state.read(Draft)) == (1, "a")

    async def test_another_class_under_a_name_in_use_is_refused(self) -> None:
        class Names:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(FirstName)
                registrar.register_key(type("Other", (FirstName,), {}))

        state = await self.state(keys=[])

        with pytest.raises(StateError, match="'name'"):
            await state.install_plugin(Names())

    async def test_what_is_no_key_or_option_is_refused(self) -> None:
        class Wrong:
            def __init__(self, *arguments: Any) -> None:
                self.arguments = arguments

            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(*self.arguments)

        state = await self.state(keys=[])

        scope: Any = "run"
        options = StateKeyOptions(scope=scope)
        for arguments in ((Locale,), (int,), (Visits, {"persistent": True}), (Visits, options)):
            with pytest.raises(StateError):
                await state.install_plugin(Wrong(*arguments))

    async def test_profile_keys_are_registered_too_and_two_of_one_name_refused(self) -> None:
        class Profiles:
            def __init__(self, *keys: Any) -> None:
                self.keys, self.name = keys, f"profiles of {len(keys)}"

            def register(self, registrar: PluginRegistrar) -> None:
                for key in self.keys:
                    registrar.register_profile_key(key)

        state = await self.state(keys=[], plugins=[Profiles(Locale, Locale)])

        with pytest.raises(StateError, match=r"profiles of 2.*profiles of 1"):
            await state.install_plugin(Profiles(Locale))
        with pytest.raises(StateError):
            await state.install_plugin(Profiles(Score, Visits, Score))
