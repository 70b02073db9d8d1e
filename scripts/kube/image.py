#!/usr/bin/env python3
"""Writes a container image of one layer, as `ctr images import` takes it, without a registry.

  image.py OUT NAME SOURCE:TARGET...    a file, or for *.so their names as the loader wants them; busybox gets its applets' names
"""
import hashlib
import io
import json
import sys
import tarfile

APPLETS = "sh cat ls env sleep echo grep id mkdir touch true".split()


def folder(tar, name):
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(info)


def layer(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        made = set()
        for name in "bin dev etc proc run sys tmp var".split():
            folder(tar, name)
            made.add(name)
        for source, target in files:
            parts = target.strip("/").split("/")
            for n in range(1, len(parts)):
                parent = "/".join(parts[:n])
                if parent not in made:
                    folder(tar, parent)
                    made.add(parent)
            with open(source, "rb") as f:
                data = f.read()
            info = tarfile.TarInfo("/".join(parts))
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
            if parts[-1] == "busybox":
                for name in APPLETS:
                    info = tarfile.TarInfo("bin/" + name)
                    info.type, info.linkname = tarfile.SYMTYPE, "busybox"
                    tar.addfile(info)
    return out.getvalue()


def main():
    out, name = sys.argv[1:3]
    data = layer([f.split(":", 1) for f in sys.argv[3:]])
    digest = hashlib.sha256(data).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}, "history": [{"created_by": "image.py"}],
    }).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [digest + "/layer.tar"]}]).encode()
    with tarfile.open(out, "w") as tar:
        for file, text in ((config_name, config), (digest + "/layer.tar", data), ("manifest.json", manifest)):
            info = tarfile.TarInfo(file)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))


main()
