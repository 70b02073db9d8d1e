#: title: torch.cuda.make_graphed_callables, forward and backward
#: part: 1
import compat

torch = compat.deterministic()
import models

net = torch.nn.Sequential(models.Block(256, 4), models.Block(256, 4)).cuda()
sample = torch.randn(4, 128, 256, device="cuda", requires_grad=True)
graphed = torch.cuda.make_graphed_callables(net, (sample,))
optim = torch.optim.SGD(net.parameters(), lr=0.01)
for k in range(4):
    x = torch.randn(4, 128, 256, device="cuda", requires_grad=True)
    loss = graphed(x).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
    compat.fact("loss", loss.item())
    compat.show("grad", x.grad)
