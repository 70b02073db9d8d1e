#: title: cuSOLVER and cuSPARSE through PyTorch: LU, QR, SVD, eigenvalues, Cholesky, sparse products
#: part: 2
#: compare: numbers 1e-5
import compat

torch = compat.deterministic()
torch.backends.cuda.preferred_linalg_library("cusolver")
a = torch.randn(128, 128, device="cuda", dtype=torch.float64)
spd = a @ a.T + 128 * torch.eye(128, device="cuda", dtype=torch.float64)


def mean(name, x):
    compat.fact(name, x.abs().double().sum().item())


mean("cholesky", torch.linalg.cholesky(spd))
mean("solve", torch.linalg.solve(spd, a))
q, r = torch.linalg.qr(a)
mean("qr", q @ r - a + 1)
mean("svdvals", torch.linalg.svdvals(a))
u, s, v = torch.linalg.svd(a)
mean("svd", u @ torch.diag(s) @ v - a + 1)
mean("eigh", torch.linalg.eigvalsh(spd))
mean("det", torch.linalg.slogdet(spd)[1])
mean("inv", torch.linalg.inv(spd))
mean("lstsq", torch.linalg.lstsq(a, a[:, :4]).solution)
mean("batched", torch.linalg.solve(spd.expand(16, -1, -1).contiguous(), a.expand(16, -1, -1).contiguous()))
mean("batched eigh", torch.linalg.eigvalsh(spd[:16, :16].expand(64, -1, -1).contiguous()))
m = (a * (a > 1)).to_sparse_csr()
mean("csr", m @ a)
mean("coo", torch.sparse.mm((a * (a > 1)).to_sparse(), a))
mean("sampled", torch.sparse.sampled_addmm(m, a, a).values())
mean("triangular", torch.linalg.solve_triangular(torch.linalg.cholesky(spd), a, upper=False))
