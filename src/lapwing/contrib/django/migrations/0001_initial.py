"""Create the table of tasks."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first version."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="TaskRow",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("backend", models.CharField(max_length=80)),
                ("queue_name", models.CharField(max_length=80)),
                ("priority", models.SmallIntegerField()),
                ("arguments", models.JSONField()),
                ("run_after", models.DateTimeField(null=True)),
                ("status", models.CharField(max_length=10)),
                ("enqueued_at", models.DateTimeField(db_index=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("worker_ids", models.JSONField(default=list)),
                ("errors", models.JSONField(default=list)),
                ("return_value", models.JSONField(null=True)),
            ],
            options={"db_table": "lapwing_task", "ordering": ["enqueued_at"]},
        )
    ]
