"""The checkpoint folder: one driver, one shape, no sequence twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from acktree import BasicBolt, Config, IterableSpout, Retry, Topology, TopologyBuilder, bolt, submit
from acktree.checkpoint.files import FOLDER, Files
from acktree.checkpoint.folder import BLOCK, Checkpoint
from acktree.checkpoint.location import folder_of, location_of, refuse_letters_without_database
from acktree.core.stats.counters import Counters
from acktree.errors import CheckpointError, ConfigError
from tests.unit.ui.driver_without_spark import Started


@bolt(outputs=[])
def swallow(tup):
    """Nothing."""


def topology(parallelism: int = 1) -> Topology:
    builder = TopologyBuilder("swallowing")
    builder.set_spout("numbers", IterableSpout([], ["n"]))
    builder.set_bolt("swallow", swallow, parallelism=parallelism).shuffle_grouping("numbers")
    return builder.create_topology()


def begun(
    folder: Path, config: Config | None = None, parallelism: int = 1, files: Files = FOLDER
) -> Checkpoint:
    held = Checkpoint(folder, files)
    try:
        held.begin_run(topology(parallelism), config or Config(), 2)
        held.note_run()
    except BaseException:
        held.close()
        raise
    return held


def test_a_second_driver_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    held = begun(tmp_path)
    with pytest.raises(CheckpointError, match="another driver"):
        Checkpoint(tmp_path)
    held.close()
    held.close()
    begun(tmp_path).close()


class Counting(BasicBolt):
    """Remembers."""

    outputs = []
    remembers = ["counts"]

    def execute(self, tup, collector): ...


def counting(parallelism: int, *, name: str = "count") -> Topology:
    builder = TopologyBuilder("counting")
    builder.set_spout("numbers", IterableSpout([], ["n"]))
    builder.set_bolt(name, Counting(), parallelism).fields_grouping("numbers", ["n"])
    return builder.create_topology()


def run_once(folder: Path, topology: Topology, config: Config | None = None) -> Topology:
    with closing(Checkpoint(folder)) as held:
        topology = held.begin_run(topology, config or Config(), 2)
        held.note_run()
        return topology


def test_a_refused_shape_lets_go_of_the_folder_and_changes_nothing(tmp_path: Path) -> None:
    run_once(tmp_path, counting(2))
    before = (tmp_path / "acktree.json").read_text()
    with pytest.raises(CheckpointError) as refused:
        run_once(tmp_path, counting(3))
    assert "bolt 'count' has parallelism 3 now, and had 2, but what its tasks remember" in refused.value.what
    assert refused.value.where == f"topology 'counting' on the checkpoint {tmp_path}"
    assert f"python -m acktree rebalance {tmp_path} --component count --parallelism 3" in refused.value.fix
    with pytest.raises(CheckpointError, match="messages are not tracked any more"):
        run_once(tmp_path, counting(2), Config(acker_executors=0))
    assert (tmp_path / "acktree.json").read_text() == before
    run_once(tmp_path, counting(2), Config(acker_executors=5))  # as many as one likes: the acker is one


def test_all_refused_changes_are_reported_at_once(tmp_path: Path) -> None:
    run_once(tmp_path, counting(2))
    with pytest.raises(CheckpointError, match=r"'count' is gone, but .*; messages are not tracked any more"):
        run_once(tmp_path, counting(2, name="other"), Config(acker_executors=0))


def test_a_changed_topology_keeps_its_task_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run_once(tmp_path, topology(2)).tasks == {"numbers": (1,), "swallow": (2, 3)}
    with caplog.at_level("INFO", "acktree"):
        assert run_once(tmp_path, topology(1)).tasks == {"numbers": (1,), "swallow": (2,)}
    assert "bolt 'swallow' has parallelism 1 now, and had 2" in caplog.text
    assert run_once(tmp_path, topology(2)).tasks == {"numbers": (1,), "swallow": (2, 4)}


def test_other_partitions_than_the_checkpoint_has_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(tmp_path, topology(), Config(partitions=2))
    run_once(tmp_path, topology(), Config(partitions=2))
    assert not caplog.text
    run_once(tmp_path, topology(), Config(partitions=3))
    assert f"python -m acktree rebalance {tmp_path} --partitions 3" in caplog.text


@pytest.mark.parametrize("folder", ["inbox", "commits"])
def test_a_checkpoint_that_was_used_and_has_lost_its_facts_is_refused_and_not_changed(
    tmp_path: Path, folder: str
) -> None:
    run_once(tmp_path, topology())
    (tmp_path / "acktree.json").unlink()
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "000000000001.data.1.1").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"acktree.json is missing, and {folder} has files") as refused:
        run_once(tmp_path, topology())
    assert "from a copy" in refused.value.fix
    assert sorted(tmp_path.rglob("*")) == before


def of_version_1(folder: Path) -> None:
    """A checkpoint as version 1 wrote it."""
    facts = {"version": 1, "run_salt": 7, "partitions": 2, "run": 4, "reserved": 5 * BLOCK, "shape": {}}
    (folder / "acktree.json").write_text(json.dumps(facts | {"first_sequence": 0}))


def test_a_checkpoint_of_version_1_names_its_messages_otherwise_and_is_refused(tmp_path: Path) -> None:
    of_version_1(tmp_path)
    before = (tmp_path / "acktree.json").read_text()
    with pytest.raises(CheckpointError, match="version 1, and this acktree reads 8"):
        run_once(tmp_path, counting(2))
    assert (tmp_path / "acktree.json").read_text() == before


def test_salt_and_partitions_are_those_of_the_first_run(tmp_path: Path) -> None:
    held = begun(tmp_path, Config(run_salt=7, partitions=3))
    assert (held.run_salt, held.partitions, held.run) == (7, 3, 1)
    held.close()
    held = begun(tmp_path, Config(run_salt=8, partitions=1, acker_executors=3))
    assert (held.run_salt, held.partitions, held.run) == (7, 3, 2)
    held.close()


def test_no_run_is_given_a_sequence_that_an_earlier_one_had_reserved(tmp_path: Path) -> None:
    held = begun(tmp_path)
    assert held.first_sequence == 0
    end = held.reserve(0)
    assert held.reserve(end) == end + BLOCK
    held.close()  # or killed: it is durable
    held = begun(tmp_path)
    assert held.first_sequence == end + BLOCK
    held.close()


def test_a_driver_that_has_released_its_checkpoint_reserves_nothing(tmp_path: Path) -> None:
    held = begun(tmp_path)
    end = held.reserve(0)
    held.close()
    before = (tmp_path / "acktree.json").read_bytes()
    with pytest.raises(CheckpointError, match="another driver may have its checkpoint"):
        held.reserve(end)
    assert (tmp_path / "acktree.json").read_bytes() == before


def test_many_spout_threads_reserve_at_the_same_time(tmp_path: Path) -> None:
    held = begun(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(held.reserve, [n * BLOCK for n in range(50)]))
    assert ends == [(n + 1) * BLOCK for n in range(50)]
    assert json.loads((tmp_path / "acktree.json").read_text())["reserved"] == 50 * BLOCK
    held.close()


def test_only_what_is_acktrees_is_deleted(tmp_path: Path) -> None:
    held = begun(tmp_path)
    others = [
        tmp_path / name for name in ("plan-b.txt", "spark-notes.md", "memory-dump", "spark (copy)", "plan-c")
    ]
    ours = [tmp_path / name for name in ("memory-7", "spark-7")]
    for folder in (*others[2:], *ours):
        folder.mkdir()
    for file in others[:2]:
        file.touch()
    old = held.new_plan_file()
    old.touch()
    assert held.new_plan_file() != old
    held.drop_earlier_generations()
    assert all(other.exists() for other in others)
    assert not any(each.exists() for each in (*ours, old))
    held.close()


def test_what_ended_stays_ended(tmp_path: Path) -> None:
    held = begun(tmp_path)
    assert not held.has_ended
    held.mark_ended()
    held.close()
    held = Checkpoint(tmp_path)
    assert held.has_ended
    held.close()


@pytest.mark.parametrize("written", ["", "[1, 2]", '{"version": 1', "null"])
def test_a_damaged_checkpoint_is_refused_in_words(tmp_path: Path, written: str) -> None:
    (tmp_path / "acktree.json").write_text(written)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint(tmp_path)
    (tmp_path / "acktree.json").unlink()
    Checkpoint(tmp_path).close()


def test_facts_that_were_changed_by_others_or_are_an_older_copy_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "acktree.json"
    begun(tmp_path).close()
    older = file.read_text()
    begun(tmp_path).close()
    newer = file.read_text()
    file.write_text(newer.replace('"run": 2', '"run": 3'))
    with pytest.raises(CheckpointError, match=r"acktree\.json is damaged: its checksum is another one"):
        begun(tmp_path)
    file.write_text(older)
    with closing(begun(tmp_path)) as held:
        held.refuse_later_run(1)
        with pytest.raises(CheckpointError, match=r"is an older copy: it knows 1 runs, and run 2 was here"):
            held.refuse_later_run(2)
        held.refuse_older(held.written)
        with pytest.raises(CheckpointError, match=r"older copy: it was written 3 times, and 4 times at the"):
            held.refuse_older(4)
        held.refuse_used_sequences(held.first_sequence - 1)
        with pytest.raises(CheckpointError, match="older copy: an earlier run has used sequences"):
            held.refuse_used_sequences(held.first_sequence)


def test_the_facts_of_a_later_run_are_written_once_all_else_was_read(tmp_path: Path) -> None:
    file = tmp_path / "acktree.json"
    begun(tmp_path).close()
    before = file.read_bytes()
    with closing(Checkpoint(tmp_path)) as held:
        held.begin_run(topology(), Config(), 2)
        assert held.run == 2
        assert file.read_bytes() == before  # it may be what something else tells to be an older copy
        end = held.reserve(0)  # a spout task does so when it is made
        assert file.read_bytes() == before
        written = held.written
        held.note_run()
        facts = json.loads(file.read_bytes())
        assert (facts["run"], facts["reserved"]) == (2, end)
        held.reserve(end)
        assert json.loads(file.read_bytes())["written"] == held.written == written + 2


def test_a_run_on_facts_that_are_older_than_the_last_commit_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "acktree.json"
    running = Started(tmp_path)
    older = file.read_bytes()
    running.held.reserve(running.held.first_sequence + BLOCK)
    running.commit(Counters())
    running.held.close()
    file.write_bytes(older)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"acktree\.json is an older copy: it was written") as refused:
        Started(tmp_path)
    assert "from a copy" in refused.value.fix
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """What is in the durable files of a checkpoint."""
    of_a_run = {"lock", "wake", "taken", "work", "hold"}
    files = (file for file in folder.rglob("*") if file.is_file() and file.name not in of_a_run)
    files = (file for file in files if ".sqlite" not in file.name)
    return {file: file.read_bytes() for file in files}


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "acktree.json").write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match="version 99, and this acktree reads 8"):
        Checkpoint(tmp_path)


def test_what_is_admitted_and_committed_is_read_from_sparks_logs(tmp_path: Path) -> None:
    held = begun(tmp_path)
    assert (held.admitted(), held.last_committed()) == (-1, -1)
    offsets, commits = held.spark / "offsets", held.spark / "commits"
    offsets.mkdir(parents=True)
    commits.mkdir()
    for batch_id, end in ((8, 40), (9, 41), (10, 57)):
        frame = '{"logOffset":3}'  # a DataFrame that is a spout has a line of its own
        lines = ["v1", '{"batchTimestampMs":1}', frame, f'{{"chunk": {end}}}']
        (offsets / str(batch_id)).write_text("\n".join(lines))
    (offsets / ".11.tmp").write_text("half of")
    (offsets / "٦٦").write_text("another program's: digits, and no name that Spark writes")
    (commits / "66²").touch()
    (commits / "8").touch()
    (commits / "9").touch()
    assert (held.admitted(), held.last_committed()) == (57, 9)
    assert held.is_committed(9)
    assert not held.is_committed(10)
    held.close()


def test_an_ended_topology_is_not_given_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from acktree.spark import submit as putting_together  # noqa: PLC0415  # imports pyspark

    held = begun(tmp_path)
    held.mark_ended()
    held.close()
    monkeypatch.setattr(putting_together, "lend_session", None)  # would be called to make one
    for _ in range(2):
        running = putting_together.submit(topology(), checkpoint=tmp_path)
        assert running.await_termination(1)
        assert not running.is_running
        assert len(running.dead_letters) == 0
        assert running.stats()["numbers"].open == 0
        running.kill()


def test_a_reservation_that_found_no_room_is_none_for_the_next_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoint = begun(tmp_path)
    first = checkpoint.first_sequence
    with monkeypatch.context() as patched:
        patched.setattr("acktree.system.private_files.write_private", full)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="no space left on a disk"):
                checkpoint.reserve(first)
    assert checkpoint.reserve(first) == first + BLOCK
    checkpoint.close()
    again = begun(tmp_path)
    assert again.first_sequence == first + BLOCK
    again.close()


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_a_path_and_a_file_url_name_the_same_folder(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "with a %"
    given = str(folder) if form == "{}" else form.format(quote(str(folder)))
    assert folder_of(given) == folder


def test_a_file_url_may_have_become_a_path_on_its_way(tmp_path: Path) -> None:
    assert folder_of(Path(tmp_path.as_uri())) == tmp_path


def test_a_relative_path_is_that_of_now_and_a_colon_makes_no_url(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of("orders") == tmp_path / "orders"
    assert folder_of("orders:v2/today") == tmp_path / "orders:v2/today"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("file://elsewhere/orders", "this one is at elsewhere"),
        ("hdfs://names:8020/", "a whole file system"),
        ("hdfs://me:s3cret@names/orders", "takes no password"),
        ("wasbs://box@account/orders?sig=s3cret", "no query"),
        ("hdfs://names/orders#s3cret", "no fragment"),
    ],
)
def test_a_url_that_cannot_be_taken_is_refused_and_its_secrets_are_not_shown(
    tmp_path: Path, monkeypatch, url: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=what) as raised:
        submit(topology(), checkpoint=url)
    assert "s3cret" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["hdfs://me@names:8020/orders", "s3a://bucket/orders"])
def test_a_url_of_hadoops_is_taken_unchanged_and_offline_tools_say_that_they_need_a_folder(
    url: str,
) -> None:
    assert location_of(f"{url}/") == url
    with pytest.raises(CheckpointError, match="this checkpoint is at a URL") as raised:
        folder_of(url)
    assert raised.value.where == url


def test_with_a_checkpoint_at_a_url_a_retry_needs_a_database_of_dead_letters() -> None:
    builder = TopologyBuilder("tried")
    builder.set_spout("numbers", IterableSpout([1], ["n"]), retry=Retry(max_attempts=2))
    tried = builder.create_topology()
    with pytest.raises(ConfigError, match="spout 'numbers' has a Retry"):
        submit(tried, checkpoint="hdfs://names/orders")
    refuse_letters_without_database(
        "hdfs://names/orders", tried, Config(dead_letters_url="sqlite:////shared/letters")
    )
    refuse_letters_without_database("hdfs://names/orders", topology(), Config())


def test_another_topology_is_refused_by_its_name_or_by_its_components(tmp_path: Path) -> None:
    def other(name: str, spout: str, bolt_id: str) -> Topology:
        builder = TopologyBuilder(name)
        builder.set_spout(spout, IterableSpout([], ["n"]))
        builder.set_bolt(bolt_id, swallow).shuffle_grouping(spout)
        return builder.create_topology()

    run_once(tmp_path, other("orders", "in", "work"))
    with pytest.raises(CheckpointError, match="has another name than 'orders'") as renamed:
        run_once(tmp_path, other("verdict_batches", "in", "work"))
    assert "a checkpoint of its own; or if it is the same topology, name it 'orders'" in renamed.value.fix
    with pytest.raises(CheckpointError, match=r"none of .* was in the topology that ran") as strange:
        run_once(tmp_path, other("orders", "verdict_batch", "send"))
    assert "a checkpoint of its own; or give its components the ids" in strange.value.fix
    run_once(tmp_path, other("orders", "in", "send"))


def test_a_folder_that_holds_other_files_is_warned_of_before_its_first_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "holiday.jpg").touch()
    for _ in range(2):
        begun(tmp_path).close()
    warned = [each for each in caplog.messages if "holds other files" in each]
    assert len(warned) == 1, "a checkpoint of our own is not warned of"
    assert "holiday.jpg" in warned[0]


def test_what_a_driver_leaves_that_was_killed_while_it_started_is_no_reason_for_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("driver.log", "lock", "control.json"):
        (tmp_path / name).touch()
    (tmp_path / "spark").mkdir()
    begun(tmp_path).close()
    assert "other files" not in caplog.text


def test_a_new_folder_is_no_reason_for_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path / "new").close()
    assert "other files" not in caplog.text
