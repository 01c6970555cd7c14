"""Rules that hold for any shape, element type and argument, searched by Hypothesis."""

import numpy as np
import pytest
import taichi as ti
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dl_structs as dl
import helpers
from helpers import (
    DTYPES,
    Fake,
    check_released,
    compact_strides,
    element_type,
    numbers,
    own_device,
    peek,
    set_values,
    take,
    values_of,
)

names = st.sampled_from(sorted(DTYPES))
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
full_shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
elements = st.one_of(st.just(()), st.tuples(st.integers(1, 4)), st.tuples(st.integers(1, 3), st.integers(1, 3)))
kinds = st.sampled_from(["legacy", "versioned", "asked"])
copies = st.sampled_from([None, False, True])

# What a caller could pass for any argument, right or wrong.
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.tuples(st.integers(-1, 20)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.text(max_size=2), st.integers(0, 2)),
)


def is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_pair(value):
    return isinstance(value, tuple) and len(value) == 2 and all(is_int(part) for part in value)


def expected_export_error(stream, max_version, dl_device, copy):
    """The errors that the contract allows for these arguments; empty when the export must succeed."""
    errors = set()
    if not (copy is None or isinstance(copy, bool)):
        errors.add(TypeError)
    for pair in (max_version, dl_device):
        if pair is not None and not is_pair(pair):
            errors.add(TypeError)
    if stream is not None and not is_int(stream):
        errors.add(TypeError)
    elif stream is not None and (stream in (0, -2, -3) if helpers.ON_CUDA else stream != -1):
        errors.add(ValueError)
    if dl_device is not None and is_pair(dl_device) and dl_device != own_device():
        errors.add(BufferError)
    return errors


class TestExport:
    @given(name=names, shape=full_shapes, element=elements, versioned=st.booleans())
    def test_capsule_describes_the_ndarray(self, name, shape, element, versioned):
        nd = helpers.new_ndarray(name, shape, element)
        wanted = numbers(shape + element, name)
        set_values(nd, wanted)
        view = peek(nd.__dlpack__(max_version=(1, 0)) if versioned else nd.__dlpack__())
        assert view.name == (dl.VERSIONED if versioned else dl.LEGACY)
        assert view.shape == shape + element and view.dtype == helpers.dl_type(name) and view.device == own_device()
        assert view.byte_offset == 0 and (view.ndim == 0 or view.strides == compact_strides(view.shape))
        assert view.bytes() == wanted.tobytes()

    @pytest.mark.cpu_only("on CUDA arbitrary numbers are taken for stream handles")
    @settings(max_examples=400)
    @given(stream=anything, max_version=anything, dl_device=anything, copy=anything)
    def test_arguments_are_judged_as_the_contract_says(self, stream, max_version, dl_device, copy):
        fake = Fake(numbers((4,), "f32"))
        nd = ti.from_dlpack(fake)
        errors = expected_export_error(stream, max_version, dl_device, copy)
        try:
            view = peek(nd.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy))
        except (TypeError, ValueError, BufferError) as error:
            assert type(error) in errors, f"{error!r}, allowed: {errors}"
        else:
            assert not errors
            assert view.versioned == (max_version is not None and max_version[0] >= 1)
            assert (view.data != fake.pointer) == (copy is True)
        del nd
        check_released(fake)


class TestImport:
    @given(name=names, shape=shapes, element=elements, kind=kinds, copy=copies, null_strides=st.booleans())
    def test_compact_memory_comes_in_whole(self, name, shape, element, kind, copy, null_strides):
        wanted = numbers(shape + element, name)
        fake = Fake(wanted, capsule=kind, strides=None if null_strides else "compact")
        nd = ti.from_dlpack(fake, dtype=element_type(name, element) if element else None, copy=copy)
        assert nd.shape == shape and nd.element_shape == element and nd.dtype == helpers.ti_type(name)
        assert (values_of(nd) == wanted).all()
        if wanted.size:
            assert (peek(nd.__dlpack__()).data == fake.pointer) == (copy is not True)
        del nd
        check_released(fake)

    @settings(max_examples=300)
    @given(
        data=st.data(), name=names, shape=st.lists(st.integers(0, 4), max_size=4).map(tuple), kind=kinds, copy=copies
    )
    def test_any_strides_give_right_values_or_a_refusal(self, data, name, shape, kind, copy):
        strides = tuple(data.draw(st.integers(-20, 20)) for _ in shape)
        offset = sum(-s * (n - 1) for n, s in zip(shape, strides) if s < 0 and n > 1)
        base = numbers((512,), name)
        item = base.itemsize
        fake = Fake(base, shape=shape, strides=strides, byte_offset=offset * item, capsule=kind)
        wanted = np.lib.stride_tricks.as_strided(base[offset:], shape, [s * item for s in strides])
        compact = wanted.size == 0 or all(n == 1 or s == c for n, s, c in zip(shape, strides, compact_strides(shape)))
        try:
            nd = ti.from_dlpack(fake, copy=copy)
        except BufferError as error:
            assert not compact and copy is not True, error
            assert str(strides) in str(error)
        else:
            assert compact or copy is True
            assert nd.shape == shape and (values_of(nd) == wanted).all()
            del nd
        check_released(fake)

    @given(
        code=st.integers(0, 20),
        bits=st.sampled_from([0, 1, 4, 8, 12, 16, 32, 64, 128, 255]),
        lanes=st.sampled_from([0, 1, 2, 4, 65535]),
        kind=kinds,
    )
    @settings(max_examples=300)
    def test_only_the_contracts_types_come_in(self, code, bits, lanes, kind):
        fake = Fake(np.zeros(8, np.float64), shape=(2,), dtype=(code, bits, lanes), capsule=kind)
        known = {helpers.dl_type(name): name for name in DTYPES}.get((code, bits, lanes))
        try:
            nd = ti.from_dlpack(fake)
        except BufferError:
            assert known is None
        else:
            assert nd.dtype == helpers.ti_type(known)
            del nd
        check_released(fake)

    @given(device_type=st.integers(-1, 20), device_id=st.integers(0, 2))
    def test_only_usable_devices_come_in(self, device_type, device_id):
        assume(not (helpers.ON_CUDA and device_type in (dl.CUDA, dl.CUDA_MANAGED, dl.CUDA_HOST)))
        # The ordinal of host memory says nothing.
        assume(not (device_id and device_type in (dl.CPU, dl.CUDA_HOST, dl.CUDA_MANAGED)))
        fake = Fake(device=(device_type, device_id))
        usable = (dl.CUDA, dl.CUDA_MANAGED) if helpers.ON_CUDA else (dl.CPU, dl.CUDA_HOST, dl.CUDA_MANAGED)
        try:
            nd = ti.from_dlpack(fake)
        except BufferError as error:
            assert device_type not in usable and f"{device_type}, {device_id}" in str(error)
        else:
            assert device_type in usable
            del nd
        check_released(fake)

    @pytest.mark.cpu_only("the device argument of CUDA needs a second device")
    @given(dtype=st.sampled_from([None, ti.f32, ti.i32, "f32", 3, float]), device=anything, copy=anything)
    def test_arguments_are_judged_as_the_contract_says(self, dtype, device, copy):
        fake = Fake(numbers((4,), "f32"))
        errors = set()
        if dtype in ("f32", 3) or not (copy is None or isinstance(copy, bool)):
            errors.add(TypeError)
        if dtype is ti.i32:
            errors.add(BufferError)
        if device is not None and not is_pair(device):
            errors.add(TypeError)
        elif device is not None and device != own_device():
            errors.add(BufferError)
        try:
            nd = ti.from_dlpack(fake, dtype=dtype, device=device, copy=copy)
        except (TypeError, BufferError) as error:
            assert type(error) in errors, f"{error!r}, allowed: {errors}"
            del error
        else:
            assert not errors
            del nd
        check_released(fake)


class TestRoundTrip:
    @given(name=names, shape=shapes, hops=st.lists(st.booleans(), min_size=1, max_size=5))
    def test_any_chain_of_exports_and_imports_is_one_memory(self, name, shape, hops):
        fake = Fake(numbers(shape, name))
        nd = ti.from_dlpack(fake)
        for versioned in hops:
            nd = ti.from_dlpack(nd.__dlpack__(max_version=(1, 0)) if versioned else nd.__dlpack__())
        view = peek(nd.__dlpack__())
        assert view.shape == shape and view.data == (fake.pointer if view.count else None)
        assert fake.open == 1
        del nd
        check_released(fake)

    @given(order=st.permutations(range(4)), versioned=st.booleans())
    def test_holders_may_let_go_in_any_order(self, order, versioned):
        fake = Fake(numbers((4,), "f32"))
        asked = {"max_version": (1, 0)} if versioned else {}
        nd = ti.from_dlpack(fake)
        holders = [nd, nd.__dlpack__(**asked), take(nd.__dlpack__(**asked)), ti.from_dlpack(nd)]
        del nd
        for position, index in enumerate(order):
            assert fake.open == 1
            if index == 2:
                assert holders[2].bytes() == numbers((4,), "f32").tobytes()
                holders[2].delete()
            holders[index] = None
            assert fake.open == 1 or position == 3
        check_released(fake)
