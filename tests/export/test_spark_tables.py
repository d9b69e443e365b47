"""Tables and object stores whose rows Spark selects: a condition in SQL, continued by another run."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.spark.engine import SETTINGS, SparkEngine

pytestmark = pytest.mark.external


def export(spark, lake, tmp_path, to, kind, **given):
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    engine = SparkEngine(tmp_path / "spark.log", session=spark)
    check = str(tmp_path / f"{kind}.done")
    wanted = ExportOptions(
        {"path": lake.data_dir}, "/", "tasks", to, check, kind, where="offset % 2 = 0", batch_rows=3000, **given
    )
    return ExportJob(wanted, engine, lambda report: None, lambda: False).run()


def test_condition_selects_the_rows_of_tables(spark, written, tmp_path):
    deltalake, catalogs = pytest.importorskip("deltalake"), pytest.importorskip("pyiceberg.catalog.sql")
    given = {"partition_by": ("date", "queue"), "table": "shop.orders"}
    for kind in ("delta", "iceberg"):
        assert export(spark, written, tmp_path, str(tmp_path / kind), kind, to_offset=4000, **given).rows == 1500
        assert export(spark, written, tmp_path, str(tmp_path / kind), kind, **given).rows == 500
    catalog = catalogs.SqlCatalog("amqpd", uri=f"sqlite:///{tmp_path}/iceberg/catalog.db")
    iceberg = catalog.load_table("shop.orders").scan().to_arrow()
    catalog.close()
    delta = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    for table in (iceberg, delta):
        assert sorted(table.column("offset").to_pylist()) == list(range(1000, 5000, 2))
        assert set(table.column("queue").to_pylist()) == {"tasks"}
    assert iceberg.column_names == ["value", "vhost", "queue", "offset", "timestamp", "exchange", "routing_key"]


def test_condition_selects_the_rows_of_objects(spark, written, tmp_path, s3):
    obstore = pytest.importorskip("obstore")
    total = export(spark, written, tmp_path, "s3://lake/spark", "parquet", partition_by=("routing_key",))
    assert (total.rows, total.batches) == (2000, 2)
    store = obstore.store.from_url("s3://lake/spark", client_options={"allow_http": True})
    names = [each["path"] for chunk in obstore.list(store) for each in chunk]
    assert names and all(name.startswith("routing_key=us/tasks-") for name in names)
