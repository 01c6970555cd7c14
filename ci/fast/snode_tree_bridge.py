"""The memory of fields, as dlpack_bridge.py supplies that of ndarrays.

An export of a field holds its SNode tree's memory, whose pages are carried out of the tree
when it is destroyed. A kernel, one for each tree, tells where the memory is.
"""

import weakref

from taichi._lib.core import taichi_dlpack as ext
from taichi._lib.kept_pages import warn_of_freed, whole_pages

NEEDS_SOURCE_WHEEL = "The fast wheel cannot do this; build the source wheel (`make wheel`) for it."


class _TreeMemory:
    """Owns the memory of an SNode tree on behalf of its exports, once the tree is gone."""

    def __init__(self, address, size):
        self.address = address
        self._size = size
        self._is_ours = False

    def leave_tree(self, destroy):
        """Takes the memory out of the tree, which `destroy` unmaps."""
        ext.keep_pages(self.address, self._size, destroy)
        self._is_ours = True

    def __del__(self):
        if self._is_ours:
            ext.free_pages(self.address, self._size)


class _SNodeTree:
    """A tree of the current program."""

    def __init__(self, core_tree):
        self.core_tree = core_tree
        # Where the memory starts, once it is known, and the bytes in it. The core maps whole pages for a tree, and
        # nothing else into them.
        self._address = None
        self._size = None
        # What the live exports hold. Not kept alive from here.
        self._memory = None

    def address(self, core, prog):
        """Where the tree's memory starts."""
        if self._address is None:
            root = prog.get_snode_root(self.core_tree.id())
            self._size = whole_pages(root.cell_size_bytes)
            self._address = _address_by_kernel(core, prog, root)
        return self._address

    def live_memory(self):
        return self._memory() if self._memory is not None else None

    def share_memory(self):
        """What keeps the memory alive, for one more export. Its address is known."""
        memory = self.live_memory()
        if memory is None:
            memory = _TreeMemory(self._address, self._size)
            self._memory = weakref.ref(memory)
        return memory


def _first_dense_place(snode):
    """A place node with dense nodes above it only, and its offset from the start of the tree, in bytes."""
    for child in (snode.get_ch(i) for i in range(snode.get_num_ch())):
        found = None
        if child.is_place():
            found = (child, 0)
        elif str(child.type) == "SNodeType.dense":
            found = _first_dense_place(child)
        if found is not None:
            return found[0], found[1] + child.offset_bytes_in_parent_cell
    return None


def _address_by_kernel(core, prog, root):
    """The address of a tree's memory. Only a kernel can tell: it asks for that of a field's first element.

    Built without `ti.kernel`, so that no tape records it.
    """
    place, byte_offset = _first_dense_place(root)

    def group(expressions):
        expr_group = core.ExprGroup()
        for expression in expressions:
            expression.type_check(prog.config())
            expr_group.push_back(expression)
        return expr_group

    def body(kernel):
        kernel.insert_ret(core.DataType_u64)
        kernel.finalize_rets()
        kernel.finalize_params()
        builder = kernel.ast_builder()
        # Without the field's index offsets: zeros are the first element.
        zeros = group(core.make_const_expr_int(core.DataType_i32, 0) for _ in range(place.num_active_indices()))
        builder.create_kernel_exprgroup_return(group([builder.expr_snode_get_addr(place, zeros)]), core.DebugInfo())

    kernel = prog.create_kernel(body, f"address_of_snode_tree_{root.id}", core.AutodiffMode.NONE)
    context = kernel.make_launch_context()
    prog.launch_kernel(prog.compile_kernel(prog.config(), prog.get_device_caps(), kernel), context)
    return context.get_struct_ret_uint([0]) - byte_offset


class TreeBridge:
    """The trees of the current program, and what the core lacks for sharing their memory."""

    def __init__(self, core):
        self._core = core
        # By number.
        self._trees = {}

    def install(self):
        """Adds the names that fields ask for, and watches the trees come and go."""
        core = self._core
        core.snode_tree_address = self._address
        core.view_of_snode_tree = self._view
        finalize_snode_tree = core.finalize_snode_tree
        destroy_snode_tree = core.SNodeTree.destroy_snode_tree

        def finalize_and_remember(registry, root, prog, compile_only):
            tree = finalize_snode_tree(registry, root, prog, compile_only)
            if not compile_only:
                self._trees[tree.id()] = _SNodeTree(tree)
            return tree

        def destroy_and_keep_exports(tree, prog):
            known = self._trees.pop(tree.id(), None)
            memory = known.live_memory() if known is not None else None
            if memory is not None:
                try:
                    memory.leave_tree(lambda: destroy_snode_tree(tree, prog))
                    return
                except OSError as error:
                    warn_of_freed("A field", error)
            destroy_snode_tree(tree, prog)

        core.finalize_snode_tree = finalize_and_remember
        core.SNodeTree.destroy_snode_tree = destroy_and_keep_exports

    def keep_exports(self, prog):
        """Hands the memory that other libraries hold over to them, before `prog` ends."""
        for tree in list(self._trees.values()):
            if tree.live_memory() is not None:
                tree.core_tree.destroy_snode_tree(prog)
        self._trees.clear()

    def _tree(self, prog, tree_id):
        if prog.config().arch == self._core.Arch.cuda:
            raise BufferError(f"Sharing a field on CUDA was asked for. {NEEDS_SOURCE_WHEEL}")
        if tree_id not in self._trees:
            raise BufferError("This field has no memory: its SNode tree was compiled for another program (AOT) only")
        return self._trees[tree_id]

    def _address(self, prog, tree_id):
        return self._tree(prog, tree_id).address(self._core, prog)

    def _view(self, prog, tree_id, byte_offset, dtype, shape, strides, device, lifetime):
        tree = self._tree(prog, tree_id)
        address = tree.address(self._core, prog) + byte_offset
        # A view that is left from an ended program must not hold on to its trees.
        reference = weakref.ref(tree)

        def share(on_any_stream):  # pylint: disable=unused-argument
            alive = reference()
            if alive is None:
                raise BufferError("The memory of this field was freed")
            return alive.share_memory()

        return ext.make_view(address, dtype, shape, strides, device, 0, lifetime, share)
