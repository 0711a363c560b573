from __future__ import annotations

import dataclasses
import inspect
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.config import Config
from acktree.errors import ConfigError


def refused(**settings) -> str:
    with pytest.raises(ConfigError) as caught:
        Config(**settings)
    text = str(caught.value)
    assert len(text.splitlines()) == 3
    return text


def refused_mapping(settings) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(settings)
    text = str(caught.value)
    assert len(text.splitlines()) == 3
    return text


def test_the_defaults_are_storms():
    config = Config()
    assert config.message_timeout_secs == 30
    assert config.enable_message_timeouts is True
    assert config.acker_executors is None
    assert config.max_spout_pending is None
    assert config.tick_tuple_freq_secs is None
    assert config.stats_sample_rate == 0.05
    assert (config.max_error_report_per_interval, config.error_throttle_interval_secs) == (5, 10)
    assert config.debug is False


def test_one_message_in_a_thousand_is_traced_unless_a_topology_says_otherwise():
    assert Config().trace_sample_rate == 0.001  # docs/security.md and docs/operators.md name it


def test_a_config_is_frozen_keyword_only_and_can_be_replaced_pickled_and_compared():
    config = Config(max_spout_pending=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_spout_pending = 8
    with pytest.raises(TypeError):
        Config(30)
    assert dataclasses.replace(config, debug=True) == Config(max_spout_pending=7, debug=True)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(Config(max_spout_pending=7))


def test_an_unknown_setting_is_refused_with_the_nearest_known_one():
    assert "did you mean 'max_spout_pending'?" in refused(max_spuot_pending=3)
    text = refused_mapping({"topology.mesage.timeout.secs": 3})
    assert "did you mean 'topology.message.timeout.secs'?" in text
    assert "did you mean" in refused_mapping({"message_timeout_secs": 3})


def test_replace_with_an_unknown_setting_is_refused_alike():
    with pytest.raises(ConfigError, match="did you mean 'debug'"):
        dataclasses.replace(Config(), debgu=True)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("topology.workers", "Spark decides how many workers"),
        ("topology.worker.childopts", "Spark starts and places"),
        ("topology.tasks", "as many tasks as its parallelism"),
        ("topology.max.task.parallelism", "fixed by create_topology"),
        ("topology.trident.batch.emit.interval.millis", "no Trident"),
        ("topology.kryo.register", "no Kryo"),
        ("nimbus.seeds", "daemon of Storm"),
    ],
)
def test_a_setting_of_storms_that_means_nothing_here_is_refused_with_the_reason(key, why):
    assert why in refused_mapping({key: 4})


def test_the_reason_is_given_for_a_keyword_too():
    assert "Spark decides how many workers" in refused(workers=4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_timeout_secs": 0},
        {"message_timeout_secs": -1},
        {"message_timeout_secs": "30"},
        {"message_timeout_secs": True},
        {"message_timeout_secs": None},
        {"message_timeout_secs": float("nan")},
        {"message_timeout_secs": float("inf")},
        {"enable_message_timeouts": 1},
        {"enable_message_timeouts": "false"},
        {"acker_executors": -1},
        {"acker_executors": 1.5},
        {"max_spout_pending": -1},
        {"max_spout_pending": 10.0},
        {"tick_tuple_freq_secs": 0},
        {"stats_sample_rate": 0},
        {"stats_sample_rate": 1.01},
        {"max_error_report_per_interval": -1},
        {"spout_wait_strategy": "sleep"},
        {"spout_wait_strategy": None},
        {"inbox_max_messages": 0},
        {"partitions": 0},
        {"partitions": 65_537},
        {"run_salt": 2**64},
        {"dead_letters_url": "letters.sqlite"},
        {"dead_letters_url": "://host/db"},
        {"dead_letters_url": 7},
        {"dead_letters_url": "sqlite://"},
        {"dead_letters_url": "sqlite:///:memory:"},
        {"dead_letter_limit_count": -1},
        {"dead_letter_limit_count": 1.5},
        {"dead_letter_limit_ratio": 1.01},
        {"dead_letter_limit_ratio": None},
        {"dead_letter_limit_window_secs": 0},
    ],
    ids=str,
)
def test_a_wrong_type_or_range_is_refused_with_what_is_wanted(wrong):
    (name,) = wrong
    text = refused(**wrong)
    assert text.startswith(f"{name} is ")
    assert "must be" in text
    assert "leave it out for the default" in text


def test_a_number_too_large_for_a_float_is_still_a_number():
    assert Config(max_spout_pending=10**400).max_spout_pending == 10**400


def test_no_pending_messages_at_all_means_no_limit_as_in_storm():
    assert Config(max_spout_pending=0).max_spout_pending is None


def test_storms_keys_are_read_with_storms_names_of_things():
    config = Config.from_mapping(
        {
            "topology.message.timeout.secs": 60,
            "topology.acker.executors": 0,
            "topology.max.spout.pending": None,
            "topology.spout.wait.strategy": "org.apache.storm.policy.WaitStrategyPark",
            "topology.spout.wait.park.microsec": 50,
        }
    )
    assert config == Config(
        message_timeout_secs=60, acker_executors=0, spout_wait_strategy="park", spout_wait_park_microsec=50
    )


def test_the_settings_of_ours_are_not_dressed_as_storms():
    keys = Config().to_mapping().keys()
    assert {"topology.message.timeout.secs", "topology.spout.wait.progressive.level3.sleep.millis"} <= keys
    assert {"acktree.partitions", "acktree.inbox.max.bytes", "acktree.survive.power.cut"} <= keys


configs = st.builds(
    Config,
    message_timeout_secs=st.one_of(st.integers(1), st.floats(0.001, 1e9)),
    enable_message_timeouts=st.booleans(),
    acker_executors=st.none() | st.integers(0, 99),
    max_spout_pending=st.none() | st.integers(0, 10**6),
    tick_tuple_freq_secs=st.none() | st.floats(0.001, 1e6),
    spout_wait_strategy=st.sampled_from(["progressive", "park"]),
    partitions=st.none() | st.integers(1, 64),
    run_salt=st.none() | st.integers(0, 2**64 - 1),
    dead_letters_url=st.none() | st.just("postgresql+psycopg://me:S3cr3t@host/letters?sslpassword=S3cr3t"),
    dead_letter_limit_count=st.none() | st.integers(0, 10**6),
)


@given(configs)
def test_what_to_mapping_writes_from_mapping_reads_also_by_way_of_json(config):
    assert Config.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


@given(configs)
def test_no_secret_is_shown_and_every_other_setting_is(config):
    shown = config.without_secrets()
    for text in (repr(config), str(config), f"{config}", repr(shown), str(shown.to_mapping())):
        assert "S3cr3t" not in text
    changed = {each.name for each in dataclasses.fields(Config) if getattr(config, each.name) != each.default}
    assert all(f"{name}=" in repr(config) for name in changed)
    assert dataclasses.replace(shown, dead_letters_url=config.dead_letters_url) == config


def test_an_error_about_the_url_does_not_show_its_password():
    text = refused(dead_letters_url="sqlite:///:memory:?password=S3cr3t")
    assert "S3cr3t" not in text
    assert "***" in text


@pytest.mark.parametrize(
    "url",
    ["postgresql:/me:S3cr3t@h/db", b"postgresql://me:S3cr3t@h/db", ["S3cr3t"], "://me:S3cr3t@h", "S3cr3t"],
)
def test_a_mistyped_url_is_refused_and_not_shown(url):
    text = refused(dead_letters_url=url)
    assert "S3cr3t" not in text
    assert "dialect://" in text


def test_a_connection_string_inside_a_url_is_not_shown_to_components():
    config = Config(dead_letters_url="mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3DS3cr3t")
    assert "S3cr3t" not in f"{config!r} {config.without_secrets().to_mapping()}"


def test_what_is_ours_alone_is_called_acktree_and_the_rest_by_storms_key():
    ours = {key.removeprefix("acktree.") for key in Config().to_mapping() if key.startswith("acktree.")}
    assert {"execute.timeout.secs", "batch.interval.secs", "partitions"} <= ours
    with pytest.raises(ConfigError, match=r"did you mean 'acktree\.execute\.timeout\.secs'"):
        Config.from_mapping({"topology.execute.timeout.secs": 1})


@pytest.mark.parametrize(
    "key",
    [
        "users", "groups", "readonly.users", "readonly.groups", "auto-credentials", "blobstore.map",
        "hdfs.uri",
        "submitter.user", "submitter.principal", "logging.sensitivity", "min.replication.count", "version",
        "max.replication.wait.time.sec", "spread.components", "acker.cpu.pcore.percent", "shared.memory",
        "acker.resources.onheap.memory.mb", "disruptor.wait.timeout.millis", "receiver.buffer.size",
        "sleep.spout.wait.strategy.time.ms", "serialized.message.size.metrics", "ras.one.executor.per.worker",
    ],
)  # fmt: skip
def test_a_setting_of_storms_for_its_cluster_is_not_taken_for_a_typing_error(key):
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({f"topology.{key}": 1})
    assert ": " in caught.value.what
    assert "did you mean" not in caught.value.fix


def test_a_repr_without_secrets_can_be_evaluated():
    config = Config(max_spout_pending=7, spout_wait_strategy="park")
    assert eval(repr(config)) == config


def test_every_setting_says_what_it_does():
    source = inspect.getsource(Config).split("def __post_init__")[0]
    for setting in dataclasses.fields(Config):
        after = source.split(f"    {setting.name}: ")[1].splitlines()[1]
        assert after.strip().startswith('"""'), setting.name
