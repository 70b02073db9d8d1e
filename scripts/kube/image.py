#!/usr/bin/env python3
"""Writes a container image of one layer as an OCI layout in a tar file, which `ctr images import`, podman, docker and skopeo take. No registry is asked, and the
same files give the same bytes.

  image.py [--entrypoint PATH] [--user UID] [--bare] OUT NAME:TAG SOURCE:TARGET...

A file that is called busybox gets its applets' names. Without --entrypoint the image sleeps; --bare leaves out the folders that programs of a system look for.
"""
import argparse
import gzip
import hashlib
import io
import json
import tarfile

APPLETS = "sh cat ls env sleep echo grep id mkdir touch true".split()
FOLDERS = "bin dev etc proc run sys tmp var".split()


class Layer:
    """The files of an image. All are root's, and of no time."""

    def __init__(self):
        self.out, self.made = io.BytesIO(), set()
        self.tar = tarfile.open(fileobj=self.out, mode="w")

    def folder(self, name):
        if name and name not in self.made:
            self.folder(name.rpartition("/")[0])
            self.made.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            self.tar.addfile(info)

    def file(self, source, target):
        name = target.strip("/")
        self.folder(name.rpartition("/")[0])
        with open(source, "rb") as f:
            data = f.read()
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o755
        self.tar.addfile(info, io.BytesIO(data))
        if name.rpartition("/")[2] == "busybox":
            for applet in APPLETS:
                info = tarfile.TarInfo("bin/" + applet)
                info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                self.tar.addfile(info)

    def data(self):
        self.tar.close()
        return self.out.getvalue()


class Layout:
    """A tar file of blobs by their digests."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w")

    def put(self, name, data):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        self.tar.addfile(info, io.BytesIO(data))

    def blob(self, kind, data):
        digest = hashlib.sha256(data).hexdigest()
        self.put("blobs/sha256/" + digest, data)
        return {"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(data)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entrypoint")
    parser.add_argument("--user")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("out")
    parser.add_argument("name")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    layer = Layer()
    for name in [] if args.bare else FOLDERS:
        layer.folder(name)
    for pair in args.files:
        layer.file(*pair.split(":", 1))
    data = layer.data()
    run = {"Entrypoint": [args.entrypoint] if args.entrypoint else ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin:/usr/bin"]}
    if args.user:
        run["User"] = args.user
    layout = Layout(args.out)
    config = layout.blob("config.v1+json", json.dumps({
        "architecture": "amd64", "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]}, "history": [{"created_by": "image.py"}],
    }).encode())
    packed = layout.blob("layer.v1.tar+gzip", gzip.compress(data, 6, mtime=0))
    manifest = layout.blob("manifest.v1+json", json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [packed]}).encode())
    # Readers of layouts go by the first name, containerd by the second.
    manifest["annotations"] = {"org.opencontainers.image.ref.name": args.name.rpartition(":")[2], "io.containerd.image.name": args.name}
    layout.put("index.json", json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}).encode())
    layout.put("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    layout.tar.close()


main()
