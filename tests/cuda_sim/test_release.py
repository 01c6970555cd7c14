"""Imported memory is given back after the last work of Taichi's that may use it, and the host never waits for that.

The producers here free the memory in their deleter: one that is called too early makes a fault, which fails the test.
"""

import gc
import threading

import pytest
import taichi as ti

import processes
import sim
from shared_arrays import (
    COUNT,
    InterfaceProducer,
    Memory,
    Producer,
    assert_no_wait,
    consume,
    init,
    launch,
    ndarray,
    needs_core,
)

pytestmark = pytest.mark.usefixtures("cuda")

SEEDS = range(40)


def dropped(producer, value=1):
    """Imports, has Taichi launch a kernel on the memory, and drops the ndarray; gives the calls that the drop made."""
    x = ti.from_dlpack(producer)
    launch(x, value)
    with sim.recording() as made:
        del x
        gc.collect()
    return made


def test_with_nothing_pending_it_is_given_back():
    producer = Producer()
    assert_no_wait(dropped(producer))
    ti.sync()
    assert producer.deleted == 1


def test_pending_work_delays_it():
    producer = Producer()
    sim.order("late")
    assert_no_wait(dropped(producer))
    assert producer.deleted == 0
    assert producer.memory.values == [0] * COUNT


def test_a_drop_orders_without_touching_other_streams():
    producer, side = Producer(), sim.Stream(non_blocking=True)
    memory = Memory()
    sim.order("late")
    side.fill(memory.pointer, COUNT, 1)
    dropped(producer)
    sim.cu("cuStreamSynchronize", sim.NULL)
    ti.from_dlpack(Producer())  # looks after what is finished
    assert producer.deleted == 1 and side.pending == 1
    side.run()


def next_import():
    ti.from_dlpack(Producer())


def next_drop():
    producer = Producer()
    x = ti.from_dlpack(producer)
    sim.clear_log()
    del x


@pytest.mark.parametrize("later", [next_import, next_drop])
def test_finished_work_is_noticed_by_what_comes_later(later):
    producer = Producer()
    sim.order("late")
    dropped(producer)
    with sim.recording() as made:
        later()
    assert producer.deleted == 0, "the kernel has not run"
    assert_no_wait(made)
    sim.drain()
    assert producer.deleted == 0, "nobody asked"
    with sim.recording() as made:
        later()
    assert producer.deleted == 1
    assert_no_wait(made)


def test_synchronizing_gives_everything_back():
    producers = [Producer() for _ in range(5)]
    sim.order("late")
    for producer in producers:
        dropped(producer)
    assert [producer.deleted for producer in producers] == [0] * 5
    ti.sync()
    assert [producer.deleted for producer in producers] == [1] * 5


@pytest.mark.parametrize("end", [ti.reset, init], ids=["reset", "init"])
def test_the_end_of_a_program_gives_everything_back(end):
    held, gone = Producer(), Producer()
    sim.order("late")
    x = ti.from_dlpack(held)
    launch(x)
    dropped(gone)
    end()
    assert gone.deleted == 1
    del x
    gc.collect()
    init()
    ti.sync()
    assert held.deleted == 1


def test_an_interface_is_held_until_the_work_is_done():
    memory = Memory()
    sim.order("late")
    x = ti.from_dlpack(InterfaceProducer(memory))
    launch(x)
    del x
    gc.collect()
    assert not memory.is_freed
    ti.sync()
    gc.collect()
    assert memory.is_freed


@needs_core
def test_the_next_kernel_gives_back_what_is_finished():
    producer, other = Producer(), ndarray()
    sim.order("late")
    dropped(producer)
    sim.drain()
    with sim.recording() as made:
        launch(other)
    assert producer.deleted == 1
    assert_no_wait(made)


def test_a_capture_is_not_spoilt_by_a_drop():
    producer, capturing = Producer(), sim.Stream(non_blocking=True)
    x = ti.from_dlpack(producer)
    sim.order("late")
    launch(x)
    capturing.begin_capture()
    del x
    gc.collect()
    capturing.end_capture()
    assert producer.deleted == 0
    ti.sync()
    assert producer.deleted == 1


def test_a_capture_is_not_spoilt_by_looking_after_what_is_finished():
    producer, other, capturing = Producer(), Producer(), sim.Stream(non_blocking=True)
    sim.order("late")
    dropped(producer)
    capturing.begin_capture()
    x = ti.from_dlpack(other)
    capturing.end_capture()
    del x


def test_a_driver_that_lies_about_events_is_found_out():
    """The check itself: were finished work assumed, the memory would be freed under the kernel."""
    producer = Producer()
    sim.order("late")
    sim.ignore("cuEventQuery")
    with sim.expect_fault("FREE_WHILE_IN_USE"):
        dropped(producer)
    with sim.expect_fault("USE_AFTER_FREE"):
        sim.drain()


def test_events_are_used_again():
    for _ in range(10):
        dropped(Producer())
    ti.sync()
    with sim.recording() as made:
        for _ in range(200):
            dropped_now = Producer()
            x = ti.from_dlpack(dropped_now)
            del x
    assert not [call for call in made if call.name == "cuEventCreate"]


def test_many_orders_of_work():
    for seed in SEEDS:
        sim.order("random", seed)
        producers = [Producer(Memory(0)) for _ in range(6)]
        for producer in producers:
            dropped(producer, 3)
        ti.sync()
        assert [producer.deleted for producer in producers] == [1] * 6
        sim.order("program")


def test_a_second_import_of_one_memory():
    producer = Producer()
    producer.keep = True
    sim.order("late")
    x, y = ti.from_dlpack(producer), ti.from_dlpack(producer)
    launch(x)
    del x
    ti.sync()
    assert producer.deleted == 1
    launch(y)
    del y
    ti.sync()
    assert producer.deleted == 2
    producer.memory.free()


def test_an_export_of_an_import_holds_it():
    producer = Producer()
    x = ti.from_dlpack(producer)
    view = consume(x)
    sim.order("late")
    launch(x)
    del x
    ti.sync()
    assert producer.deleted == 0
    view.delete_on_foreign_thread()
    ti.sync()
    assert producer.deleted == 1


def test_a_consumer_of_an_import_that_works_on_the_default_stream():
    """Its work is in order with Taichi's, but not with what the owner does with the memory."""
    producer = Producer()
    x = ti.from_dlpack(producer)
    view = consume(x)
    sim.order("late")
    launch(x)
    del x
    sim.drain()
    sim.legacy_stream().add(view.data, COUNT, 1)
    view.delete()
    assert producer.deleted == 0
    ti.sync()
    assert producer.deleted == 1


def test_a_consumer_of_an_import_when_no_program_is_left():
    """Nobody would look after it later, so that it waits."""
    producer = Producer()
    view = consume(ti.from_dlpack(producer))
    ti.reset()
    sim.order("late")
    sim.legacy_stream().add(view.data, COUNT, 1)
    view.delete()
    assert producer.deleted == 1
    init()


def test_a_consumer_of_an_import_that_works_on_another_stream():
    producer, side = Producer(), sim.Stream(non_blocking=True)
    x = ti.from_dlpack(producer)
    sim.order("late")
    view = consume(x, stream=side.handle)
    side.add(view.data, COUNT, 1)
    del x
    view.delete()
    ti.sync()
    assert producer.deleted == 1


def test_gradients_are_held_like_data():
    data, grad = Producer(), Producer()
    x = ti.from_dlpack(data)
    x.grad = ti.from_dlpack(grad)
    sim.order("late")
    launch(x.grad)
    launch(x)
    del x
    gc.collect()
    assert (data.deleted, grad.deleted) == (0, 0)
    ti.sync()
    gc.collect()
    ti.sync()
    assert (data.deleted, grad.deleted) == (1, 1)


def test_an_import_dropped_on_another_thread():
    producer = Producer()
    sim.order("late")
    held = [ti.from_dlpack(producer)]
    launch(held[0])
    with sim.recording() as made:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    assert producer.deleted == 0
    assert_no_wait(made)
    ti.sync()
    assert producer.deleted == 1


def test_a_deleter_that_uses_taichi():
    seen = []
    other = ndarray(4)

    class Curious(Producer):
        @property
        def deleted(self):
            return self._deleted

        @deleted.setter
        def deleted(self, count):
            self._deleted = count
            if count:
                self.memory.free()
                ti.from_dlpack(Producer())
                seen.append(other[0])

    producer = Curious()
    sim.order("late")
    dropped(producer)
    ti.sync()
    assert seen == [4]


def test_a_copy_gives_the_original_back():
    producer = Producer(Memory(5))
    sim.order("late")
    x = ti.from_dlpack(producer, copy=True)
    gc.collect()
    ti.sync()
    assert producer.deleted == 1
    del x


EXIT = """
import shared_arrays as s
import taichi as ti
s.init()
producer = s.Producer()
x = ti.from_dlpack(producer)
gone = ti.from_dlpack(s.Producer())
sim.order("late")
s.launch(x)
s.launch(gone)
del gone
"""


def test_work_and_imports_that_are_there_at_exit():
    processes.run_python(EXIT).check()
