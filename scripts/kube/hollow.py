#!/usr/bin/env python3
"""Writes a fleet of hollow nodes for the page's test: nodes, ResourceSlices, claims and pods in every state that the page shows.

  hollow.py objects|status      as a List for kubectl create, and for kubectl replace --subresource=status
"""
import json
import sys

DRIVER, GI = "gpu.causeway.dev", "Gi"


def node(name, ready=True, **spec):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown", "reason": "test"}]}}


def gpu(name, model, memory, taint=None):
    d = {"name": name, "allowMultipleAllocations": True, "attributes": {"model": {"string": model}, "uuid": {"string": name}},
         "capacity": {"memory": {"value": memory}, "compute": {"value": "100"}}}
    if taint:
        d["taints"] = [{"key": DRIVER + "/drained", "value": taint, "effect": "NoSchedule"}]
    return d


def slice_of(name, devices):
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": DRIVER, "nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}


def claim(name, memory, compute="0", on=None, sessions=None, pod=True, waits=None, lease=None, of=None):
    c = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "team"}, "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "causeway", "allocationMode": "ExactCount", "count": 1, "capacity": {"requests": {"memory": memory, "compute": compute}}}}]}}, "status": {}}
    if on:
        pool, device = on
        result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device, "shareID": "6f1c9e3a-5a40-4a8e-9d3e-%012x" % (abs(hash(name)) % (1 << 40)),
                  "consumedCapacity": {"memory": memory, "compute": compute}}
        if lease is not None:
            result["bindingConditions"], result["bindingFailureConditions"] = ["causeway.dev/LeaseReady"], ["causeway.dev/LeaseRefused"]
        c["status"] = {"allocation": {"devices": {"results": [result]}}}
        if pod or of:
            c["status"]["reservedFor"] = [{"resource": "pods", "name": of or name + "-0", "uid": "u-" + name}]
        conditions = [("SessionsOpen", sessions)] if sessions is not None else []
        if lease:
            conditions.append(("causeway.dev/LeaseReady", True))
        if conditions:
            c["status"]["devices"] = [{"driver": DRIVER, "pool": pool, "device": device, "shareID": result["shareID"], "conditions": [
                {"type": t, "status": "True" if is_true else "False", "reason": "Test", "message": "", "lastTransitionTime": "2026-11-25T12:00:00Z"} for t, is_true in conditions]}]
    objects = [c]
    if pod:
        objects.append(pod_of(name + "-0", name, on[0] if on else None))
    if waits:
        objects.append({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name + ".1", "namespace": "team"}, "type": "Warning", "reason": "FailedScheduling",
                        "message": waits, "lastTimestamp": "2026-11-25T12:00:00Z", "involvedObject": {"kind": "Pod", "namespace": "team", "name": name + "-0", "uid": "OF " + name + "-0"}})
    return objects


def pod_of(name, claim_name, on, vm=None):
    p = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"}, "spec": {
        "resourceClaims": [{"name": "vgpu", "resourceClaimName": claim_name}], "containers": [{"name": "c", "image": "none", "resources": {"claims": [{"name": "vgpu"}]}}]},
        "status": {"phase": "Running" if on else "Pending"}}
    if on and not on.startswith("fleet/"):
        p["spec"]["nodeName"] = on
    if vm:
        p["metadata"]["labels"], p["metadata"]["annotations"] = {"causeway.dev/vgpu": "vgpu", "kubevirt.io": "virt-launcher"}, {"kubevirt.io/domain": vm}
    return p


def fleet():
    h200, l40 = "NVIDIA H200", "NVIDIA L40S"
    a, b, c = "gpu-host-1", "gpu-host-2", "gpu-host-3"
    yield from (node(a), node(b), node(c, ready=False), node("gpu-host-4", unschedulable=True))
    yield slice_of(a, [gpu("gpu-83cbbca2-f377-0c91-36ff-7878a164232%d" % i, h200, "140Gi") for i in range(2)])
    yield slice_of(b, [gpu("gpu-0e52cc1a-91d7-4d0b-8f0a-11c0a1b2c3d%d" % i, l40, "46Gi", "fault" if i else None) for i in range(2)])
    yield slice_of(c, [gpu("gpu-77777777-0c91-36ff-7878-a16423270000", l40, "46Gi")])
    yield slice_of("gpu-host-4", [gpu("gpu-44444444-0c91-36ff-7878-a16423270000", l40, "46Gi")])
    g = ["gpu-83cbbca2-f377-0c91-36ff-7878a164232%d" % i for i in range(2)]
    yield from claim("train-llm", "120Gi", "75", (a, g[0]), pod=True)
    yield from claim("notebook-anna", "24Gi", "10", (a, g[1]))
    yield from claim("desktop-vm", "96Gi", "25", (a, g[1]), sessions=True, pod=False, of="virt-launcher-desktop-vm-a")
    yield from claim("build-vm", "32Gi", "50", (b, "gpu-0e52cc1a-91d7-4d0b-8f0a-11c0a1b2c3d0"), sessions=False)
    yield from claim("inference", "8Gi", "20", (b, "gpu-0e52cc1a-91d7-4d0b-8f0a-11c0a1b2c3d0"), pod=False)
    yield from claim("batch-42", "60Gi", waits="0/4 nodes are available: 2 cannot allocate all claims, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.")
    yield from claim("later", "16Gi", pod=False)
    yield from claim("remote-job", "40Gi", "30", ("fleet/gpu-server-9", "gpu-99999999-net"), lease=True)
    yield pod_of("virt-launcher-desktop-vm-a", "desktop-vm", a, "desktop-vm")
    yield pod_of("virt-launcher-desktop-vm-b", "desktop-vm", None, "desktop-vm")


def main():
    which, items = sys.argv[1], list(fleet())
    if which == "status":
        items = [i for i in items if i.get("status")]
    else:
        for i in items:
            i.pop("status", None)
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)


main()
