"""Weights sent by this process and taken by another, as a server does, and what is said where they do not come."""

import asyncio
import gc
import shutil
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from gagar_mcore.records.store import publish_directory
from gagar_mcore.weights.buckets import plan_buckets
from gagar_mcore.weights.distributed import Broadcast
from gagar_mcore.weights.files import TensorFiles
from gagar_mcore.weights.follow import Delta
from gagar_mcore.weights.mailbox import Mailbox
from gagar_mcore.weights.receiver import receiving
from gagar_mcore.weights.sender import sending
from gagar_mcore.weights.tensor import SharedMemory
from gagar_mcore.weights.transport import Disk, TransportError, Update

SMALL = 4_000  # bytes of a bucket
READER = """
import base64, pickle, sys, torch
from safetensors.torch import save_file
found = {}
for number, line in enumerate(sys.stdin):
    told = pickle.loads(base64.b64decode(line))
    for span in told["metadata"]:
        part = told["flattened_tensor"][span.start_idx : span.end_idx]
        assert span.numel == len(part)
        found[span.name] = part.view(span.dtype).reshape(span.shape).clone()
    print(number, flush=True)
save_file(found, sys.argv[1])
"""


@pytest.fixture
def weights(tmp_path):
    directory = tmp_path / "run" / "weights" / "0-000003"
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "odd": torch.arange(7, dtype=torch.uint8),
        "scales": torch.randn(3, 5, generator=generator),
        "blocks": torch.randn(30, 40, generator=generator).to(torch.float8_e4m3fn),
        "large": torch.randn(50, 60, generator=generator).bfloat16(),
        "norm": torch.ones(9, dtype=torch.bfloat16),
    }
    save_file(tensors, directory / "model.safetensors")
    return directory


class Orders:
    """What a server was told: no server, as the bodies are looked at, not obeyed."""

    def __init__(self, obey=lambda path, body: {}):
        self.given, self._obey = [], obey

    async def __call__(self, path, body):
        self.given.append((path, body))
        return await asyncio.to_thread(self._obey, path, body)

    @property
    def paths(self):
        return [path for path, _ in self.given]


def assert_equal(found, directory):
    expected = load_file(directory / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_buckets_hold_every_tensor_once_where_its_width_allows(weights):
    files = TensorFiles(weights)
    for limit in (1, SMALL, 1 << 20):
        buckets = plan_buckets(files, limit)
        assert sorted(spec.name for bucket in buckets for spec in bucket.specs) == sorted(files.names)
        assert all(bucket.nbytes <= limit or len(bucket.specs) == 1 for bucket in buckets)
        assert all(start % spec.dtype.itemsize == 0 for bucket in buckets for spec, start, _ in bucket.spans())


def test_shared_memory_is_read_by_a_process_that_is_no_child_of_python_s_own(weights, tmp_path):
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "found")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def obey(path, body):
        for told in body.get("serialized_named_tensors", []):
            reader.stdin.write(f"{told}\n")
            reader.stdin.flush()
            assert reader.stdout.readline()
        return {}

    orders = Orders(obey)
    asyncio.run(SharedMemory(2, SMALL).bring(orders, Update(weights, 3, flush=True)))
    reader.stdin.close()
    assert reader.wait(60) == 0
    assert_equal(load_file(tmp_path / "found"), weights)
    buckets = [body for path, body in orders.given if path == "/update_weights_from_tensor"]
    assert orders.paths == ["/begin_weight_update", *["/update_weights_from_tensor"] * len(buckets), "/end_weight_update"]
    assert len(buckets) > 1 and all(len(body["serialized_named_tensors"]) == 2 for body in buckets)
    assert [body.get("weight_version") for body in buckets] == [None] * (len(buckets) - 1) + ["3"]
    assert [body["flush_cache"] for body in buckets] == [False] * (len(buckets) - 1) + [True]


class Receiver:
    """One rank of a server, which joins the group as SGLang does and takes the buckets one after another."""

    def __init__(self):
        self.found = {}

    def __call__(self, path, body):
        if path == "/init_weights_update_group":
            address, port, size = body["master_address"], body["master_port"], body["world_size"]
            store = dist.TCPStore(address, port, size, False, timedelta(seconds=20))
            for prefix in (body["group_name"], f"{body['group_name']}/", "cpu/"):
                store = dist.PrefixStore(prefix, store)
            self.group = dist.ProcessGroupGloo(store, body["rank_offset"], size, timedelta(seconds=20))
        if path == "/update_weights_from_distributed":
            kinds = [getattr(torch, name) for name in body["dtypes"]]
            sizes = [torch.Size(shape).numel() * kind.itemsize for shape, kind in zip(body["shapes"], kinds, strict=True)]
            flat = torch.empty(sum(sizes), dtype=torch.uint8)
            self.group.broadcast(flat, 0).wait()
            for name, kind, shape, part in zip(body["names"], kinds, body["shapes"], flat.split(sizes), strict=True):
                self.found[name] = part.view(kind).reshape(shape)
        return {}


def test_the_trainer_s_sender_sends_to_several_servers_and_leaves_nothing_behind(weights):
    run, receivers = weights.parents[1], [Receiver(), Receiver()]

    async def bring_all():
        update = Update(weights, 3, flush=False)
        await asyncio.gather(*(Broadcast(1, "gloo", 20.0, SMALL).bring(Orders(each), update) for each in receivers))

    with sending(run):
        asyncio.run(bring_all())
    for receiver in receivers:
        assert_equal(receiver.found, weights)
    assert list((run / "transfers").iterdir()) == []  # by then the mark of the sender, too


def test_without_a_sender_or_without_the_weights_a_server_is_told_nothing(weights):
    transport, orders = Broadcast(1, "gloo", 20.0), Orders()
    with pytest.raises(TransportError, match=r"0-000003: no trainer offers to send them: .*nobody is there"):
        asyncio.run(transport.bring(orders, Update(weights, 3, flush=True)))
    with (
        sending(weights.parents[1]),
        pytest.raises(TransportError, match=r"0-000004: the trainer does not send them: .*holds"),
    ):
        asyncio.run(transport.bring(orders, Update(weights.with_name("0-000004"), 4, flush=True)))
    assert orders.given == []


def test_a_sender_that_was_killed_is_waited_for_no_longer_than_the_deadline(weights):
    (weights.parents[1] / "transfers").mkdir()
    (weights.parents[1] / "transfers" / "attended").touch()
    with pytest.raises(TransportError, match=r"no trainer offers to send them: .*no answer within 0\.3 s"):
        asyncio.run(Broadcast(1, "gloo", 0.3).bring(Orders(), Update(weights, 3, flush=True)))


@pytest.mark.parametrize("transport", [SharedMemory(1), Broadcast(1, "gloo", 5.0)], ids=["tensor", "distributed"])
def test_a_server_that_refuses_a_bucket_is_not_left_in_the_session(weights, transport):
    def refuse(path, body):
        if path.startswith("/update"):
            raise RuntimeError("400")
        return Receiver()(path, body)

    orders = Orders(refuse)
    with sending(weights.parents[1]), pytest.raises(RuntimeError, match="400"):
        asyncio.run(transport.bring(orders, Update(weights, 3, flush=True)))
    assert "/end_weight_update" in orders.paths[-2:]


def test_the_server_reads_a_published_directory(weights):
    orders = Orders()
    asyncio.run(Disk().bring(orders, Update(weights, 3, flush=False)))
    body = {"model_path": str(weights), "weight_version": "3", "flush_cache": False}
    assert orders.given == [("/update_weights_from_disk", body)]


@pytest.mark.parametrize("beside", [False, True], ids=["in this process", "by a receiver beside the server"])
def test_the_server_reads_a_copy_that_follows(weights, tmp_path, beside):
    shutil.copytree(weights, tmp_path / "files")
    shutil.rmtree(weights)
    publish_directory(
        weights, "weights", 1, lambda directory: shutil.copytree(tmp_path / "files", directory, dirs_exist_ok=True) and {}
    )
    mailbox = tmp_path / "policy.receiver"

    def obey(path, body):
        assert_equal(load_file(Path(body["model_path"]) / "model.safetensors"), weights)
        return {}

    async def follow():
        transport, orders = Delta(mailbox if beside else None, 10.0), Orders(obey)
        await transport.bring(orders, Update(weights, 3, flush=True))
        with pytest.raises(TransportError, match="not published"):
            await transport.bring(orders, Update(weights.with_name("0-000009"), 9, flush=True))
        await transport.close()
        return orders.given

    with receiving(mailbox) if beside else nullcontext():
        [(path, body)] = asyncio.run(follow())
    assert path == "/update_weights_from_disk" and body["weight_version"] == "3"
    assert not Path(body["model_path"]).exists()


def test_where_no_receiver_is_the_server_is_told_nothing(weights, tmp_path):
    orders = Orders()
    with pytest.raises(TransportError, match=r"0-000003: no receiver follows: .*nobody is there"):
        asyncio.run(Delta(tmp_path / "policy.receiver", 10.0).bring(orders, Update(weights, 3, flush=True)))
    assert orders.given == []


def test_nothing_is_left_of_questions_that_are_answered(tmp_path):
    mailbox = Mailbox(tmp_path / "mail")

    async def ask_all():
        for number in range(20):
            assert await mailbox.ask(f"question {number}", number, 10.0) == number

    with mailbox.attended(mailbox.answer):
        asyncio.run(ask_all())
        gc.collect()
        left = [thread for thread in gc.get_objects() if isinstance(thread, Thread) and thread.name.startswith("question")]
        assert len(left) < 5
