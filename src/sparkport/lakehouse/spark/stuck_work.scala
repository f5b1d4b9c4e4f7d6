/* Ends a Spark in which work goes on that was cancelled: a regular expression, for instance, cannot be interrupted, and
 * holds a slot for tasks, or a thread of the driver, for as long as it likes. Java has no other way to be rid of it. Who
 * has started this Spark starts the next one. It is for a Spark on one machine that does nothing but queries.
 */
package org.apache.spark.sql.sparkport

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkConf
import org.apache.spark.scheduler._
import org.apache.spark.sql.connect.service.SparkListenerConnectOperationCanceled

class StuckWork(conf: SparkConf) extends SparkListener {
  private val patience = TimeUnit.SECONDS.toNanos(conf.getLong("spark.sparkport.stuck.seconds", 20))
  private val tasks = new ConcurrentHashMap[Long, (Int, Int)]
  private val ended = new ConcurrentHashMap[(Int, Int), Long]
  private val cancelled = new ConcurrentHashMap[String, Long]
  private val clock = Executors.newSingleThreadScheduledExecutor { work =>
    val thread = new Thread(work, "sparkport-stuck-work")
    thread.setDaemon(true)
    thread
  }
  clock.scheduleWithFixedDelay(() => look(), 1, 1, TimeUnit.SECONDS)

  override def onTaskStart(event: SparkListenerTaskStart): Unit =
    tasks.put(event.taskInfo.taskId, (event.stageId, event.stageAttemptId))

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = tasks.remove(event.taskInfo.taskId)

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit =
    ended.put((event.stageInfo.stageId, event.stageInfo.attemptNumber()), System.nanoTime)

  override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
    case operation: SparkListenerConnectOperationCanceled => cancelled.put(operation.operationId, System.nanoTime)
    case _ =>
  }

  private def look(): Unit = {
    val left = tasks.values.asScala.toSet
    if (late(ended).exists(left)) end("a task")
    val threads = Thread.getAllStackTraces.keySet.asScala.map(_.getName)
    if (late(cancelled).exists(operation => threads.exists(_.endsWith(s"opId=$operation")))) end("the driver")
  }

  /** What should have been over for so long; it is looked at once. */
  private def late[K](since: ConcurrentHashMap[K, Long]): Set[K] = {
    val found = since.asScala.collect { case (key, time) if System.nanoTime - time > patience => key }.toSet
    found.foreach(since.remove(_))
    found
  }

  private def end(where: String): Unit = {
    System.err.println(s"sparkport: cancelled work goes on in $where: this Spark ends")
    Runtime.getRuntime.halt(70)
  }
}
