"""The APIs of other sandboxes, on Belljar: whoever used one of them changes an import line.

=================  =======================================================================
``agentfly``       ``PythonSandboxEnv``, ``WarmPool``
``orchestrator``   ``SandboxEnvironment``, ``ResourceLimits``
``codomyrmex``     ``execute_code``, ``execute_with_limits``, ``run_code_in_docker`` and more
``openmanus``      ``DockerSandbox``, ``SandboxManager``, ``PythonExecute`` and more
``code_sandbox``   ``CodeSandbox``, ``AutoDebuggerIntegration``
=================  =======================================================================

Where they speak of Docker, Belljar's own isolation is used; set ``BELLJAR_BACKEND=docker`` to have Docker's. They hold the
defaults that their documents name, and are otherwise as thin as they can be: what is not said here is up to the daemon.
"""
