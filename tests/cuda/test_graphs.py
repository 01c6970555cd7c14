"""CUDA graphs of torch's on Taichi's memory: an export with stream=-1 adds nothing to what is captured."""

import pytest
import taichi as ti

import gpu as gpus


@pytest.fixture(name="capture")
def capture_fixture(gpu):
    """A function that captures what another one does, after a warm-up, and returns the graph."""

    def capture(work):
        torch, stream = gpu.torch, gpu.side_stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        torch.cuda.synchronize()
        return graph

    return capture


def test_a_replay_reads_what_taichi_wrote_since(gpu, capture):
    nd, target = gpus.array(1), gpu.tensor(0)
    view = gpu.take(nd, stream=-1)
    graph = capture(lambda: target.copy_(view * 10))
    for value in (2, 3, 4):
        gpus.put(nd, value)
        graph.replay()
        assert target.unique().tolist() == [10 * value]


def test_an_export_may_be_part_of_the_capture(gpu, capture):
    nd, target = gpus.array(1), gpu.tensor(0)
    graph = capture(lambda: target.copy_(gpu.take(nd, stream=-1)))
    for value in (2, 3):
        gpus.put(nd, value)
        graph.replay()
        assert target.unique().tolist() == [value]


def test_taichi_reads_what_a_replay_wrote(gpu, capture):
    nd = gpus.array(0)
    view = gpu.take(nd, stream=-1)
    graph = capture(lambda: view.add_(1))
    gpus.put(nd, 100)
    for round_ in range(1, 4):
        graph.replay()
        gpus.add(nd, 10)
        assert gpus.values(nd) == [100 + 11 * round_]


def test_taichi_reads_the_output_of_a_graph(gpu, capture):
    nd, source = gpus.array(0), gpu.tensor(3)
    outputs = []
    graph = capture(lambda: outputs.append(source * 2))
    imported = ti.from_dlpack(outputs[-1])
    source.fill_(7)
    graph.replay()
    gpus.copy(imported, nd)
    assert gpus.values(nd) == [14]


def test_a_replay_on_a_side_stream_waits_after_an_export(gpu, capture):
    """Outside the capture the export orders, as ever: here the stream that replays waits for a slow kernel."""
    nd, target, stream = gpus.array(1), gpu.tensor(0), gpu.side_stream()
    view = gpu.take(nd, stream=-1)
    graph = capture(lambda: target.copy_(view))
    gpus.put(nd, 1)
    ti.sync()
    gpu.sleep(gpu.default, 100)
    gpus.put(nd, 2)
    with gpu.torch.cuda.stream(stream):
        gpu.torch.from_dlpack(nd)
        graph.replay()
    stream.synchronize()
    assert target.unique().tolist() == [2]


def test_a_graph_keeps_running_on_memory_of_a_view(gpu, capture):
    """The view holds the memory when the ndarray and its program are gone."""
    nd, target = gpus.array(5), gpu.tensor(0)
    view = gpu.take(nd, stream=-1)
    graph = capture(lambda: target.copy_(view))
    del nd
    others = [gpus.array(9) for _ in range(8)]
    target.zero_()
    graph.replay()
    assert target.unique().tolist() == [5] and len(others) == 8
    view.fill_(6)
    graph.replay()
    assert target.unique().tolist() == [6]
