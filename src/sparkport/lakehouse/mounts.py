"""What kind of file system a folder is on: SQLite keeps its promises on a local disk only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["network_file_system"]

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"),
        *("nfs4", "ocfs2", "orangefs", "smb3", "smbfs"),
        # In user space there are local ones too, as of containers.
        *("fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.rclone"),
        *("fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs"),
    }
)


def network_file_system(folder: Path, *, mounts: Path = _MOUNTS) -> str | None:
    """The kind of network file system that a folder is on, or will be made on; None for a local or an unknown one."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
        wanted = folder.resolve()
    except OSError:
        return None
    mounted, longest = "", -1
    for line in lines:
        head, separator, tail = line.partition(" - ")
        fields, file_system = head.split(), tail.partition(" ")[0]
        if not separator or len(fields) < 5:
            continue
        place = Path(fields[4].encode().decode("unicode_escape"))
        # Of several mounts on one place the last hides the others.
        if wanted.is_relative_to(place) and len(place.parts) >= longest:
            mounted, longest = file_system, len(place.parts)
    return mounted if mounted in _NETWORK else None
