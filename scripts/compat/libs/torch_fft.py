#: title: cuFFT through PyTorch
#: part: 2
import compat

torch = compat.deterministic()
for shape in ((64,), (1000, 1024), (32, 37, 41), (1 << 20,)):
    x = torch.randn(shape, device="cuda", dtype=torch.complex64)
    f = torch.fft.fftn(x)
    compat.show(f"fft{list(shape)}", torch.view_as_real(f))
    assert torch.allclose(torch.fft.ifftn(f), x, atol=1e-4)
x = torch.randn(128, 256, device="cuda", dtype=torch.float64)
compat.show("rfft2", torch.view_as_real(torch.fft.rfft2(x)))
compat.show("stft", torch.view_as_real(torch.stft(torch.randn(16000, device="cuda"), 400, window=torch.ones(400, device="cuda"), return_complex=True)))
