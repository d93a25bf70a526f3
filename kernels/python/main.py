import ast, json, os, socket, struct, sys, traceback
s = socket.socket(fileno=3)
ns = {"__name__": "__main__"}
def send(o):
    b = json.dumps(o).encode(); s.sendall(struct.pack("<I", len(b)) + b)
def recvn(n):
    b = b""
    while len(b) < n:
        c = s.recv(n - len(b))
        if not c: os._exit(90)
        b += c
    return b
send({"op": "ready"})
while True:
    try:
        n = struct.unpack("<I", recvn(4))[0]
        f = json.loads(recvn(n))
        if f["op"] != "run": continue
        r = {"op": "done", "id": f["id"], "ok": True, "error": None}
        try:
            t = ast.parse(f["code"]); last = None
            if t.body and isinstance(t.body[-1], ast.Expr):
                last = ast.Expression(t.body.pop().value)
            exec(compile(t, "main.py", "exec"), ns)
            if last is not None:
                v = eval(compile(last, "main.py", "eval"), ns)
                if v is not None: r["value"] = v; r["value_text"] = repr(v)
        except BaseException as e:
            r["ok"] = False
            r["interrupted"] = isinstance(e, KeyboardInterrupt)
            r["error"] = {"type": type(e).__name__, "message": str(e), "traceback": traceback.format_exc()}
        sys.stdout.flush()
        send(r)
    except KeyboardInterrupt:
        pass
