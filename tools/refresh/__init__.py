"""Programs that write anew what comes from records and code: ``python -m tools.refresh.NAME``. No number in those files is typed in.

- ``docs``, ``readme``, ``studies``, ``report_example``, ``answers``: pages, shown output, golden files and kept answers. Tests hold that
  they are current.
- ``calibrations``, ``cache_state``, ``power``, ``pooled``, ``versions``: what profiles and ``perfmodel/timing`` keep of fits.
- ``engines``, ``llama_cpp``: seconds and shares of presets in ``configs/engines``.
- ``leave_one_out``, ``serving``, ``throughput``: scores in ``tests/data`` that ``docs/accuracy.md`` shows.
"""
