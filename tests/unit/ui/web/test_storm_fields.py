"""Storm's REST: of each route the exact fields with their types, entries of lists and orders' answers too.

Tools that were written for Storm stumble over a field that is missing or has another type. What is ours is
listed beside Storm's fields, so that nothing comes or goes unnoticed.
"""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("starlette")

from acktree import Config
from acktree.cli.main import main
from acktree.core.data.frames import Kind, WireRow
from acktree.core.stats.counters import Counters
from acktree.core.stats.numbers import Lag, ReportedError

DECIMAL = re.compile(r"\d+\.\d{3}")
NONE = type(None)
KINDS = {kind.__name__: kind for kind in (str, int, float, bool)} | {
    "decimal": DECIMAL, "none": NONE, "int?": (int, NONE), "float?": (float, NONE), "any": object,
}  # fmt: skip


def of(fields):
    """Fields with their types, from ``name:type`` for each; a name of Storm's may begin with a colon."""
    return {name: KINDS[kind] for name, _, kind in (field.rpartition(":") for field in fields.split())}


class Each:
    """A JSON object whose names are no fields: each of its values, of which there is at least one."""

    def __init__(self, value, names=None):
        self.value, self.names = value, names


def check(value, wanted, at="answer"):
    if wanted is DECIMAL:
        assert isinstance(value, str), at
        assert DECIMAL.fullmatch(value), at
    elif isinstance(wanted, Each):
        assert value, at
        assert wanted.names is None or set(value) == wanted.names, at
        for name, each in value.items():
            check(each, wanted.value, f"{at}[{name}]")
    elif isinstance(wanted, dict):
        assert isinstance(value, dict), at
        assert sorted(value) == sorted(wanted), at
        for name, inner in wanted.items():
            check(value[name], inner, f"{at}.{name}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), at
        assert bool(value) == bool(wanted), at
        for each in value:
            check(each, wanted[0], f"{at}[]")
    elif isinstance(wanted, tuple):
        assert type(value) in wanted, (at, value)
    elif wanted is not object:
        assert type(value) is wanted, (at, value)


RESOURCES = of(
    "requestedMemOnHeap:float requestedMemOffHeap:float requestedTotalMem:float requestedCpu:float "
    "assignedMemOnHeap:float assignedMemOffHeap:float assignedTotalMem:float assignedCpu:float"
)
DISPLAY = of("schedulerDisplayResource:bool")
SUMMARY = RESOURCES | of(
    "id:str encodedId:str name:str owner:str status:str uptime:str uptimeSeconds:int tasksTotal:int "
    "workersTotal:int executorsTotal:int replicationCount:int schedulerInfo:none "
    "requestedGenericResources:str assignedGenericResources:str topologyVersion:none stormVersion:str"
)
WHEN = of("errorTime:int? errorLapsedSecs:int? errorHost:str errorPort:int? errorWorkerLogLink:str")
ERROR = WHEN | of("lastError:str")
EXECUTOR = of("id:str encodedId:str uptime:str uptimeSeconds:int host:str port:int workerLogLink:str")
READ = of("executed:int executeLatency:decimal processLatency:decimal acked:int failed:int")
SENT = of("emitted:int transferred:int")
BOLT = READ | SENT | of("capacity:decimal")
SPOUT = SENT | of("completeLatency:decimal acked:int failed:int")
WINDOW = of("window:str windowPretty:str")
COMPONENT = (
    of(
        "user:str id:str encodedId:str name:str executors:int tasks:int topologyId:str encodedTopologyId:str "
        "topologyStatus:str window:str windowHint:str componentType:str debug:bool samplingPct:int "
        "eventLogLink:str profilingAndDebuggingCapable:bool profileActionEnabled:bool"
    )
    | RESOURCES
    | DISPLAY
    | {"profilerActive": []}
)
COMPONENT_ERROR = WHEN | of("error:str")
WORKER = of(
    "supervisorId:str host:str port:int topologyId:str topologyName:str executorsTotal:int "
    "assignedMemOnHeap:float assignedMemOffHeap:float assignedCpu:float uptime:str "
    "uptimeSeconds:int workerLogLink:str owner:str"
) | {"componentNumTasks": Each(int)}
LOGS = of("logviewerPort:int logviewerScheme:str")
HELD = of("held:int oldestHeldSeconds:float?")
OF_ACKER = of(
    "inits:int acks:int fails:int resets:int late:int timedOut:int microBatches:int settleLatency:decimal "
    "openRoots:int"
)
SPOUT_ROW = (
    of("spoutId:str encodedSpoutId:str executors:int tasks:int") | SPOUT | RESOURCES | ERROR
    | of("open:int oldestOpenSeconds:float? awaitingRetry:int timedOut:int deadLetters:int")
    | of("retried:int lag:int? gateOf:str superseded:int")
)  # fmt: skip
BOLT_ROW = of("boltId:str encodedBoltId:str executors:int tasks:int") | BOLT | RESOURCES | ERROR | HELD
IN = of("component:str encodedComponentId:str stream:str") | READ
CELLS = [of("stream:str sani-stream:str checked:bool")]
TABLE = [{":row": CELLS}]
TOPOLOGY = SUMMARY | DISPLAY | of("user:str window:str windowHint:str msgTimeout:int") | {
    **of("debug:bool samplingPct:int"),
    "configuration": Each(object),
    "topologyStats": [WINDOW | SPOUT | of("timedOut:int")],
    "spouts": [SPOUT_ROW],
    "bolts": [BOLT_ROW],
    "workers": [WORKER],
    "visualizationTable": TABLE,
}  # fmt: skip
COUNT = [of("stream_id:str value:int")]
AVERAGE = [of("stream_id:str value:decimal")]
COUNT_IN = [of("stream_id:str component_id:str value:int")]
AVERAGE_IN = [of("stream_id:str component_id:str value:decimal")]
BOLT_METRICS = of("id:str") | {
    "emitted": COUNT, "transferred": COUNT, "acked": COUNT_IN, "failed": COUNT_IN, "executed": COUNT_IN,
    "executed_ms_avg": AVERAGE_IN, "process_ms_avg": AVERAGE_IN,
}  # fmt: skip
METRICS = of("window:str windowHint:str") | {
    "spouts": [
        of("id:str")
        | dict.fromkeys(("emitted", "transferred", "acked", "failed"), COUNT)
        | {"complete_ms_avg": AVERAGE}
    ],
    "bolts": [BOLT_METRICS],
}
WINDOWS = {"600", "10800", "86400", ":all-time"}
NODE = of(":type:str :capacity:decimal :latency:decimal :transferred:int") | {
    ":stats": [
        of(":host:str :port:int :uptime_secs:int") | {":transferred": Each(Each(int, {"default"}), WINDOWS)}
    ],
}
INPUT = of(":component:str :stream:str :sani-stream:str :grouping:str")
BOLT_PAGE = COMPONENT | {
    "boltStats": [WINDOW | BOLT],
    "inputStats": [IN],
    "outputStats": [of("stream:str") | SENT],
}
LAG = of("consumerCommittedOffset:int logHeadOffset:int lag:int")
ONE = "/api/v1/topology/{id}"
FIELDS = {
    "/api/v1/cluster/summary": DISPLAY
    | {"stormVersionInfo": of("version:str revision:str branch:str date:str")}
    | of(
        "user:str stormVersion:str nimbusUptime:str supervisors:int topologies:int "
        "slotsTotal:int slotsUsed:int slotsFree:int executorsTotal:int tasksTotal:int totalMem:float "
        "totalCpu:float availMem:float availCpu:float fragmentedMem:float fragmentedCpu:float "
        "memAssignedPercentUtil:str cpuAssignedPercentUtil:str bugtracker-url:none central-log-url:none"
    ),
    "/api/v1/cluster/configuration": Each(object, set(Config().to_mapping())),
    "/api/v1/nimbus/summary": {
        "nimbuses": [
            of(
                "host:str port:int status:str version:str nimbusUpTime:str nimbusUpTimeSeconds:str "
                "nimbusLogLink:str"
            )
        ]
    },
    "/api/v1/supervisor/summary": LOGS
    | DISPLAY
    | {
        "supervisors": [
            of(
                "id:str host:str uptime:str uptimeSeconds:int slotsTotal:int slotsUsed:int slotsFree:int "
                "totalMem:float totalCpu:float usedMem:float usedCpu:float availMem:float availCpu:float "
                "version:str blacklisted:bool"
            )
        ]
    },
    "/api/v1/supervisor?id=any": DISPLAY | {"supervisors": [], "workers": []},
    "/api/v1/owner-resources": DISPLAY | {"owners": []},
    "/api/v1/owner-resources/me": DISPLAY | {"owners": [], "topologies": []},
    "/api/v1/history/summary": {"topo-history": [str]},
    "/api/v1/topology/summary": DISPLAY | {"topologies": [SUMMARY]},
    "/api/v1/topology/summary?all=true": DISPLAY | {"topologies": [SUMMARY]},
    ONE: TOPOLOGY,
    f"{ONE}?window=600": TOPOLOGY,
    f"{ONE}/metrics": METRICS,
    f"{ONE}/metrics?sys=true": METRICS,
    f"{ONE}/visualization": {
        "double": NODE | {":inputs": [INPUT]},
        "source": NODE | {":inputs": []},
    },
    f"{ONE}/visualization-init": {"visualizationTable": TABLE},
    f"{ONE}/visualization-init?sys=true": {"visualizationTable": TABLE},
    f"{ONE}/lag": {
        "source": of("spoutId:str spoutType:str") | {"spoutLagResult": Each(Each(LAG, {"0"}), {"source"})}
    },
    f"{ONE}/logconfig": {"namedLoggerLevels": {}},
    f"{ONE}/component/double": BOLT_PAGE
    | {"executorStats": [EXECUTOR | BOLT | HELD], "componentErrors": [COMPONENT_ERROR]},
    f"{ONE}/component/__acker": BOLT_PAGE
    | {"executorStats": [EXECUTOR | BOLT], "componentErrors": []}
    | OF_ACKER,
    f"{ONE}/component/source": COMPONENT
    | {
        "spoutSummary": [WINDOW | SPOUT | of("completeLatency:float")],
        "outputStats": [of("stream:str") | SPOUT],
        "executorStats": [EXECUTOR | SPOUT],
        "componentErrors": [],
    },
    "/api/v1/topology-workers/{id}": LOGS | {"hostPortList": [of("host:str port:int")]},
}
"""Of each route the fields with their types; an empty list or object is empty, another has an entry."""
DONE = of("topologyOperation:str topologyId:str status:str")
REFUSED = of("error:str errorMessage:str")


@pytest.fixture(scope="module")
def counted(running, page):
    """Numbers for every field, as a micro-batch brings them."""
    counters = Counters()
    for task in (1, 2):
        for what, n in (("executed", 7), ("acked", 6), ("failed", 1)):
            counters.add("double", task, "source:default", what, n)
        counters.add("double", task, "default", "emitted", 6)
        counters.add_latency("double", task, "source:default", "execute_ms", 10.5, 7)
    for what, n in (("emitted", 14), ("acked", 12), ("failed", 1), ("retried", 2), ("dead_lettered", 1)):
        counters.add("source", 3, "default", what, n)
    counters.add("__acker", 0, "source:__ack_init", "executed", 14)
    counters.add("__acker", 0, "double:__ack_ack", "executed", 12)
    counters.add("__acker", 0, "double:__ack_fail", "executed", 2)
    counters.merge(
        Counters.of(
            [
                (("__acker", 0, "__ack_ack", "emitted"), 12),
                (("__acker", 0, "__ack_fail", "emitted"), 1),
                (("__acker", 0, "__ack_fail", "timed_out"), 1),
                (("__acker", 0, "", "late"), 3),
                (("__acker", 0, "", "settle_us"), 28_000),
                (("__acker", 0, "", "settle_b14"), 2),
                (("__system", -1, "", "workers_lost"), 3),
            ]
        )
    )
    held = json.dumps([["double", 1, 4, 0], ["double", 2, 0, None]]).encode()
    row = WireRow(0, 0, Kind.STATISTICS, 0, 0, 0, held, counters.to_bytes())
    running.run.results.note({Kind.STATISTICS: [row]}, 0)
    running.keep_counts()
    running.run.errors.add(ReportedError("double", 1, "why", 1_795_331_842_000, "a traceback"))
    running.run.threads.by_task[3].task.lag = Lag(5)
    (about,) = page.json("/api/v1/topology/summary")["topologies"]
    page.ask(f"/api/v1/topology/{about['id']}/activate", "POST", b"")  # what is asked next is new
    return running


def test_a_lag_by_partition_is_at_every_door(page, topology_id, counted):
    counted.run.threads.by_task[3].task.lag = Lag(7, {"orders-0": 3, "orders-1": 4})
    page.ask(f"/api/v1/topology/{topology_id}/activate", "POST", b"")  # what is asked next is new
    try:
        lags = page.json(f"/api/v1/topology/{topology_id}/lag")["source"]["spoutLagResult"]["source"]
        assert {partition: each["lag"] for partition, each in lags.items()} == {"orders-0": 3, "orders-1": 4}
        now = page.json(f"/api/acktree/v1/topologies/{topology_id}/components/source")["now"]
        assert (now["lag"], now["lag_by_partition"]) == (7, {"orders-0": 3, "orders-1": 4})
        scraped = page.ask("/metrics")[2].decode()
        where = '{partition="orders-1",spout="source",topology="numbers"}'
        assert f"acktree_spout_lag{where} 4.0\n" in scraped
    finally:
        counted.run.threads.by_task[3].task.lag = Lag(5)
        page.ask(f"/api/v1/topology/{topology_id}/activate", "POST", b"")


@pytest.mark.parametrize("route", FIELDS)
def test_each_route_of_storm_has_its_fields_and_no_other(page, topology_id, counted, route):
    check(page.json(route.format(id=topology_id)), FIELDS[route])


def test_sys_true_shows_the_acker_beside_the_bolts(page, topology_id, counted):
    path = f"/api/v1/topology/{topology_id}"
    *bolts, acker = page.json(f"{path}?sys=true")["bolts"]
    check(bolts, [BOLT_ROW])
    check(acker, BOLT_ROW | OF_ACKER)
    assert [row["boltId"] for row in page.json(path)["bolts"]] == ["double"]
    assert (acker["boltId"], acker["executed"], acker["emitted"], acker["late"]) == ("__acker", 28, 14, 3)
    assert (acker["executeLatency"], acker["settleLatency"]) == ("1.000", "14.000")
    assert page.json(f"{path}/metrics?sys=true")["bolts"][-1]["id"] == "__acker"
    told = page.json(f"{path}/component/__acker")
    assert {(row["component"], row["stream"]): row["executed"] for row in told["inputStats"]} == {
        ("source", "__ack_init"): 14, ("double", "__ack_ack"): 12, ("double", "__ack_fail"): 2,
    }  # fmt: skip
    assert [row["emitted"] for row in told["outputStats"]] == [12, 2]


def test_sys_true_draws_the_acker_with_its_streams(page, topology_id, counted):
    path = f"/api/v1/topology/{topology_id}"
    plain, nodes = (page.json(f"{path}/visualization{query}") for query in ("", "?sys=true"))
    assert set(plain) == {"source", "double"}
    assert set(nodes) == {"source", "double", "__acker"}
    any_counts = {":transferred": Each(Each(int), WINDOWS)}
    stats = [of(":host:str :port:int :uptime_secs:int") | any_counts]
    for node in nodes.values():
        check(node, NODE | {":stats": stats, ":inputs": [INPUT]})
    read = {name: {(each[":component"], each[":stream"], each[":grouping"]) for each in node[":inputs"]}
            for name, node in nodes.items()}  # fmt: skip
    assert read == {
        "source": {("__acker", "__ack_ack", "direct"), ("__acker", "__ack_fail", "direct")},
        "double": {("source", "default", "shuffle")},
        "__acker": {("source", "__ack_init", "fields")}
        | {("double", f"__ack_{what}", "fields") for what in ("ack", "fail", "reset_timeout")},
    }
    # A stream's counts are found by the plain name that its reader has.
    counts = nodes["source"][":stats"][0][":transferred"][":all-time"]
    (init,) = [each for each in nodes["__acker"][":inputs"] if each[":component"] == "source"]
    assert (
        counts[init[":sani-stream"]]
        == nodes["source"][":transferred"] - plain["source"][":transferred"]
        == 14
    )
    assert [nodes["__acker"][what] for what in (":type", ":transferred", ":latency")] == ["bolt", 14, "1.000"]
    boxes = [
        {box["stream"]: box["checked"] for row in shown["visualizationTable"] for box in row[":row"]}
        for shown in (page.json(f"{path}/visualization-init?sys=true"), page.json(f"{path}?sys=true"))
    ]
    of_acker = ("init", "ack", "fail", "reset_timeout")
    assert boxes == [{"default": True} | dict.fromkeys((f"__ack_{what}" for what in of_acker), False)] * 2


def test_held_tuples_and_the_acker_are_the_same_at_every_door(page, topology_id, counted):
    stats = counted.handle.stats()
    assert (stats["double"].held, stats["double"].tasks[2].held) == (4, 0)
    assert stats["double"].oldest_held_secs > 1_700_000_000
    rows = page.json(f"/api/v1/topology/{topology_id}/component/double")["executorStats"]
    assert [row["held"] for row in rows] == [4, 0]
    ours = page.json(f"/api/acktree/v1/topologies/{topology_id}/components/double")
    assert (ours["tasks"]["1"]["held"], ours["now"]["held"]) == (4, 4)
    assert page.json(f"/api/acktree/v1/topologies/{topology_id}")["acker"]["late"] == 3
    exposed = page.ask("/metrics")[2].decode()
    for sample in (
        'acktree_tuples_held{bolt="double",task="1",topology="numbers"} 4.0',
        'acktree_tuple_oldest_held_seconds{bolt="double",task="1",topology="numbers"} ',
        'acktree_acker_inits_total{topology="numbers"} 14.0',
        'acktree_acker_acks_total{topology="numbers"} 12.0',
        'acktree_acker_fails_total{topology="numbers"} 2.0',
        'acktree_acker_late_total{topology="numbers"} 3.0',
        'acktree_acker_settle_seconds_bucket{le="0.008192",topology="numbers"} 0.0',
        'acktree_acker_settle_seconds_bucket{le="0.016384",topology="numbers"} 2.0',
        'acktree_acker_settle_seconds_sum{topology="numbers"} 0.028',
        'acktree_messages_retried_total{spout="source",stream="default",topology="numbers"} 2.0',
        'acktree_messages_dead_lettered_total{spout="source",stream="default",topology="numbers"} 1.0',
        'acktree_messages_awaiting_retry{spout="source",topology="numbers"} 0.0',
        'acktree_micro_batches_total{topology="numbers"} 0.0',
        'acktree_micro_batch_duration_seconds_count{topology="numbers"} 0.0',
    ):
        assert sample in exposed


ORDERS = [
    ("deactivate", "deactivate"), ("activate", "activate"), ("debug/enable/10", "debug/enable"),
    ("debug/disable/0", "debug/disable"), ("component/double/debug/enable/10", "debug/enable"),
    ("component/double/debug/disable/0", "debug/disable"), ("kill/300", "kill"),
]  # fmt: skip


@pytest.mark.parametrize(("order", "named"), ORDERS)
def test_each_order_answers_as_storm_does(page, topology_id, counted, order, named):
    done = page.json(f"/api/v1/topology/{topology_id}/{order}", method="POST", body=b"")
    check(done, DONE)
    assert done == {"topologyOperation": named, "topologyId": topology_id, "status": "success"}


def test_log_levels_answer_with_all_that_are_set(page, topology_id):
    body = json.dumps({"namedLoggerLevels": {"acktree.some": {"target_level": "INFO", "timeout": 60}}})
    told = page.json(f"/api/v1/topology/{topology_id}/logconfig", method="POST", body=body.encode())
    level = of("target_level:str reset_level:str timeout:int timeout_epoch:int")
    check(told, {"namedLoggerLevels": {"acktree.some": level}})
    check(
        page.json(f"/api/v1/topology/{topology_id}/logconfig"), {"namedLoggerLevels": {"acktree.some": level}}
    )


@pytest.mark.parametrize(
    ("path", "method", "status", "ours"),
    [("topology/{id}/rebalance/0", "POST", 409, "fix"), ("topology/none", "GET", 404, ""),
     ("topology/{id}/component/none", "GET", 404, ""),
     ("topology/{id}?window=7", "GET", 400, "fix where")],
)  # fmt: skip
def test_a_refusal_has_storms_fields_and_ours(page, topology_id, path, method, status, ours):
    found, _, said = page.ask(f"/api/v1/{path.format(id=topology_id)}", method, b"")
    assert found == status
    check(json.loads(said), REFUSED | dict.fromkeys(ours.split(), str))


def test_lost_workers_are_the_same_at_every_door(page, topology_id, counted, capsys):
    assert counted.handle.stats().workers_lost == 3
    assert "__system" not in counted.handle.stats().components
    assert "workers lost: 3" in counted.handle.stats().table()
    (line,) = page.json("/api/acktree/v1/topologies")["topologies"]
    assert (line["workers_lost"], line["all_time"]["workers_lost"]) == (3, 3)
    assert b'acktree_worker_deaths_total{topology="numbers"} 3.0' in page.ask("/metrics")[2]
    assert main(["stats", "numbers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers_lost"] == 3
    assert main(["stats", "numbers"]) == 0
    assert "workers lost: 3" in capsys.readouterr().out
