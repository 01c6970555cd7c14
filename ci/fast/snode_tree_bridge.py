"""The memory of fields, as dlpack_bridge.py supplies that of ndarrays.

An export of a field holds its SNode tree's memory, whose pages are carried out of the tree
when it is destroyed. A kernel, one for each tree, tells where the memory is.
"""

import weakref
from functools import partial

from taichi._lib.core import taichi_dlpack as ext
from taichi._lib.kept_pages import SharedBlock, warn_of_freed

NEEDS_SOURCE_WHEEL = "The fast wheel cannot do this; build the source wheel (`make wheel`) for it."


class _SNodeTree:
    """A tree of the current program."""

    def __init__(self, core_tree):
        self.core_tree = core_tree
        # Where the memory starts, once it is known, and the bytes in it. The core maps whole pages for a tree, and
        # nothing else into them.
        self._address = None
        self._size = None
        self.memory = SharedBlock()

    def address(self, core, prog):
        """Where the tree's memory starts."""
        if self._address is None:
            root = prog.get_snode_root(self.core_tree.id())
            self._size = root.cell_size_bytes
            self._address = _address_by_kernel(core, prog, root)
        return self._address

    def pages_to_keep(self):
        """The pages that exports hold and that must leave the tree before it ends, or None."""
        return self.memory.pages_at(self._address, self._size) if self.memory.must_be_kept else None


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
        # The core's own function.
        self._destroy = None

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
            known = self._trees.get(tree.id())
            pages = known.pages_to_keep() if known is not None else None
            destroy, reason = partial(destroy_snode_tree, tree, prog), None
            if pages is not None:
                (reason,) = ext.carry_out([(pages, destroy)])
            if known is None or not known.memory.is_kept:
                destroy()
            self._trees.pop(tree.id(), None)
            if known is not None:
                known.memory.leave_home()
            if reason is not None:
                warn_of_freed("A field", reason)

        self._destroy = destroy_snode_tree
        core.finalize_snode_tree = finalize_and_remember
        core.SNodeTree.destroy_snode_tree = destroy_and_keep_exports

    def pages_to_keep(self, prog):
        """The pages that must leave `prog` before it ends: pairs of Pages and what has the core forget them."""
        found = [(tree.pages_to_keep(), partial(self._destroy, tree.core_tree, prog)) for tree in self._trees.values()]
        return [(pages, forget) for pages, forget in found if pages is not None]

    def forget_all(self):
        """The program ends, and its trees with it."""
        trees, self._trees = self._trees, {}
        for tree in trees.values():
            tree.memory.leave_home()

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
            return alive.memory.share()

        return ext.make_view(address, dtype, shape, strides, device, 0, lifetime, share)
