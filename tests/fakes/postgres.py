"""A real PostgreSQL server with a throw-away cluster, which can be stopped, killed and started again."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

# The server refuses to run as root; this user owns nothing else.
NOBODY = 65534
START_SECONDS = 30.0
USER = "gatehouse"
# What a URL would need to escape: the password never stands in one.
PASSWORD = "q7/N@x:2%Zk+40fYc-81uWd=9e?Rb#LsT6"


class PostgresServer:
    """Listens on loopback; users need the password. `offers`: what tests/provide/postgres printed."""

    def __init__(self, offers: Mapping[str, str]) -> None:
        self._bin = Path(offers["POSTGRES_BIN"])
        self._env = {"LD_LIBRARY_PATH": offers["POSTGRES_LIBRARIES"], "PATH": os.environ["PATH"], "TZ": "UTC"}
        self._user = NOBODY if os.getuid() == 0 else None
        # Not pytest's directory, which is closed to other users.
        self.home = Path(tempfile.mkdtemp(prefix="gatehouse-postgres-"))
        self._server: subprocess.Popen[bytes] | None = None
        self._databases = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def create(self) -> None:
        """Makes the cluster."""
        password = self.home / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            for path in (self.home, password):
                os.chown(path, self._user, self._user)
        who = ("-U", USER, "-A", "scram-sha-256", "--pwfile=password")
        self._run("initdb", "-D", "data", "-N", "-E", "UTF8", *who)

    def start(self) -> None:
        """Returns once it answers. Raises RuntimeError where it does not."""
        options = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.home,
            # A throw-away cluster need not survive a power cut, and two tests' servers fit a small machine.
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": 50,
        }
        settings = [f"--{name}={value}" for name, value in options.items()]
        log = (self.home / "log").open("ab")
        with log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", "-D", "data", *settings],
                cwd=self.home,
                env=self._env,
                stdout=log,
                stderr=log,
                process_group=0,
                user=self._user,
                group=self._user,
            )
        end = time.monotonic() + START_SECONDS
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), check=False):
            if time.monotonic() > end or self._server.poll() is not None:
                raise RuntimeError((self.home / "log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends every connection and the server, as a restart for an upgrade does."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """All of its processes die at once."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.home)

    def database(self) -> str:
        """The URL, without a password, of a new and empty database."""
        self._databases += 1
        name = f"test{self._databases}"
        self.sql("postgres", f"CREATE DATABASE {name}")
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def sql(self, database: str, text: str) -> str:
        """What psql answers, as someone else with the password."""
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database.rpartition("/")[2]]
        env = self._env | {"PGPASSWORD": PASSWORD}
        done = subprocess.run(
            [self._bin / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where, "-c", text],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self.home,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            user=self._user,
            group=self._user,
        )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")
        return done.returncode

    def _end(self, number: signal.Signals) -> None:
        if self._server is None:
            return
        if number == signal.SIGKILL:
            os.killpg(self._server.pid, number)
        else:
            self._server.send_signal(number)
        self._server.wait()
        self._server = None
